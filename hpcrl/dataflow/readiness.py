"""Which units may be sent, and which journal lines may be written: the master's core, a pure state machine.

It is told units (what each consumes, reads and changes) and what happened to them (executed, spilled, recorded), and
answers what may happen next. It derives nothing: whoever drives it knows the graph, or the script. It knows no workers,
files, clocks or rows.

What it keeps, for every unit of every open step:

- A unit is offered once, after everything that it consumes was executed. Units whose line an older attempt has written
  are never offered; a change of theirs that the checkpoint lacks is offered once more, as a replay.
- A role's changes run in the order in which they were told. A unit that reads a role's parameters runs after the change
  that it names, and before later ones that were not offered yet. No change overwrites parameters that a unit is still
  to read.
- A line may be written after the lines of all that its unit consumed: its inputs, and the change that made the
  parameters which it read. So the journal is at every moment closed under "consumed".
- Steps close in order. One of which the driver says that more units follow neither closes nor lets the next one open.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, order=True)
class Unit:
    """One data-parallel part of one call in one step; a train_step is one unit, part 0, on all of its role."""

    step: int
    call: str
    part: int

    def __str__(self) -> str:
        return f"step {self.step} {self.call}, part {self.part}"


@dataclass(frozen=True)
class Version:
    """A role's parameters with its changes up to that of step `newest`, and maybe later ones."""

    role: str
    newest: int


@dataclass(frozen=True)
class Task:
    """A unit as a driver tells it: the units whose outputs it consumes, the parameters that it reads (of a blend, those
    that it takes in), the role that it changes."""

    unit: Unit
    consumes: tuple[Unit, ...] = ()
    reads: Version | None = None
    changes: str = ""


@dataclass(frozen=True)
class Offer:
    """A unit that may be sent now. A replay follows its record."""

    unit: Unit
    replay: bool


@dataclass(eq=False)
class _Held:
    """A unit's state. `waits_for` and `needs_line_of` shrink to nothing; `unblocks` and `awaited_by` mirror them."""

    task: Task
    place: int
    replay: bool = False
    offered: bool = False
    executed: bool = False
    spilled: bool = False
    recorded: bool = False
    waits_for: set["_Held"] = field(default_factory=set)
    unblocks: list["_Held"] = field(default_factory=list)
    needs_line_of: set["_Held"] = field(default_factory=set)
    awaited_by: list["_Held"] = field(default_factory=list)

    @property
    def unit(self) -> Unit:
        return self.task.unit

    @property
    def finished(self) -> bool:
        return self.executed and self.recorded

    @property
    def recordable(self) -> bool:
        durable = self.spilled or bool(self.task.changes)
        return self.executed and not self.recorded and durable and not self.needs_line_of

    def wait_for(self, earlier: "_Held") -> None:
        if not earlier.executed and earlier not in self.waits_for:
            self.waits_for.add(earlier)
            earlier.unblocks.append(self)

    def follow_line_of(self, earlier: "_Held") -> None:
        if not earlier.recorded and earlier not in self.needs_line_of:
            self.needs_line_of.add(earlier)
            earlier.awaited_by.append(self)


@dataclass
class _Role:
    """Who reads and changes a role's parameters, in order, as far as it is not executed yet."""

    readers: dict[Unit, _Held] = field(default_factory=dict)
    writers: dict[Unit, _Held] = field(default_factory=dict)
    newest: _Held | None = None  # the change whose parameters the role has; None: those that the attempt began with


@dataclass
class _Step:
    """The units of an open step, how many of them are not both executed and recorded, and whether more follow."""

    units: dict[Unit, _Held] = field(default_factory=dict)
    unfinished: int = 0
    more: bool = False
    closed: bool = False


class Readiness:
    """The state of all open steps, of which `window` may be open at a time.

    Misuse (an unknown unit, a step out of order, a unit reported twice) raises ValueError and changes nothing.
    """

    def __init__(self, window: int = 2) -> None:
        self._window = window
        self._told = 0
        self._roles: dict[str, _Role] = {}
        self._steps: dict[int, _Step] = {}
        self._last_opened: int | None = None
        self._ready: dict[Unit, _Held] = {}
        self._recordable: dict[Unit, _Held] = {}

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    def can_open(self, step: int) -> bool:
        """Whether `step` is the next and there is room for it. The first step may be any."""
        unclosed = sum(not held.closed for held in self._steps.values())
        return self._is_next(step) and unclosed < self._window

    def open(self, step: int, tasks: Sequence[Task], more: bool = False) -> None:
        """Make the units of a step known; a role's changes and readers in the order in which they are to be.

        With `more`, others follow by `extend`, and only then the next step. In recovery more steps than the window has
        room for may be opened.
        """
        if not self._is_next(step):
            raise ValueError(f"step {step} cannot open after step {self._last_opened}; steps open one after another")
        self._tell(step, _Step(), tasks, more)
        self._last_opened = step

    def extend(self, step: int, tasks: Sequence[Task], more: bool) -> None:
        """Make more units of the newest step known; its driver had said that they follow."""
        if step not in self._steps or not self._steps[step].more:
            raise ValueError(f"step {step} has no more units; only of a step that was opened with `more` others follow")
        self._tell(step, self._steps[step], tasks, more)

    @property
    def more_follow(self) -> bool:
        """Whether the driver has said so of the newest step."""
        return self._last_opened in self._steps and self._steps[self._last_opened].more

    def restore(self, recorded: Iterable[Unit], replay: Iterable[Unit]) -> None:
        """Take over what older attempts wrote, after the steps are open and before anything is offered.

        `recorded` is never offered. `replay` are changes whose line is there and whose effect is not in the checkpoint;
        they are offered in the order of versions.
        """
        again = [self._held(unit) for unit in replay]
        for held in again:
            if not held.task.changes:
                raise ValueError(f"{held.unit} changes nothing; only changes are replayed")
            held.replay = True
        for held in sorted(again + [self._held(unit) for unit in recorded], key=lambda held: held.place):
            if not held.replay:
                held.offered = held.spilled = True
                self._mark_executed(held)
            self._mark_recorded(held)

    def was_closed(self, step: int) -> None:
        """An older attempt has written that `step` closed: it takes no room and is not closable again."""
        self._steps[step].closed = True
        self._forget_closed()

    def closable(self) -> list[int]:
        """The steps that may close now, oldest first."""
        found = []
        for step, held in self._steps.items():
            if held.unfinished or held.more:
                break
            if not held.closed:
                found.append(step)
        return found

    def closed(self, step: int) -> None:
        """The line that closes `step` is written."""
        if step not in self.closable()[:1]:
            raise ValueError(f"step {step} cannot close; closable are {self.closable()}, oldest first")
        self._steps[step].closed = True
        self._forget_closed()

    # ── units ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    def offer(self, fits: Callable[[str], bool] = lambda call: True) -> list[Offer]:
        """All units that may be sent now and have not been offered, in the order in which they were told.

        Those of calls that do not fit stay, to be offered another time.
        """
        free = (held for held in self._ready.values() if not held.waits_for and fits(held.unit.call))
        ready = sorted(free, key=lambda held: held.place)
        for held in ready:
            del self._ready[held.unit]
            held.offered = True
            self._note_version(held)
        return [Offer(held.unit, held.replay) for held in ready]

    def executed(self, unit: Unit) -> None:
        """The unit's outputs are in memory, or a role's parameters have changed."""
        held = self._held(unit)
        if not held.offered or held.executed:
            raise ValueError(f"{unit} was executed {'twice' if held.executed else 'without having been offered'}")
        self._mark_executed(held)

    def spilled(self, unit: Unit) -> None:
        """The file with the unit's outputs is published. Whether it was executed on all ranks may not be known yet."""
        held = self._held(unit)
        if held.task.changes or not held.offered or held.recorded:
            raise ValueError(f"{unit} has nothing to spill: it changes a role, was not offered, or is recorded")
        held.spilled = True
        self._note_recordable(held)

    def recordable(self) -> list[Unit]:
        """The units whose journal lines may be written now."""
        return [held.unit for held in sorted(self._recordable.values(), key=lambda held: held.place)]

    def recorded(self, unit: Unit) -> None:
        """The unit's journal line is written."""
        if unit not in self._recordable:
            raise ValueError(f"the line of {unit} may not be written now; see recordable()")
        self._mark_recorded(self._recordable[unit])

    def unfinished(self) -> list[Unit]:
        """The units of open steps that are not yet both executed and recorded."""
        units = (held for step in self._steps.values() for held in step.units.values())
        return [held.unit for held in sorted(units, key=lambda held: held.place) if not held.finished]

    # ── opening ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def _is_next(self, step: int) -> bool:
        return not self.more_follow and (self._last_opened is None or step == self._last_opened + 1)

    def _tell(self, step: int, into: _Step, tasks: Sequence[Task], more: bool) -> None:
        units = {task.unit: _Held(task, self._told + index) for index, task in enumerate(tasks)}
        consumed = {task.unit: [self._known(unit, units) for unit in task.consumes] for task in tasks}
        if again := sorted(units.keys() & into.units.keys()):
            raise ValueError(f"{again[0]} was told before")
        self._told += len(tasks)
        for held in units.values():
            for producer in consumed[held.unit]:
                held.wait_for(producer)
                held.follow_line_of(producer)
            self._order_versions(held)
        into.units.update(units)
        into.unfinished += len(units)
        into.more = more
        self._steps[step] = into
        self._ready.update((unit, held) for unit, held in units.items() if not held.waits_for)

    def _known(self, unit: Unit, opening: dict[Unit, _Held]) -> _Held:
        return opening[unit] if unit in opening else self._held(unit)

    def _order_versions(self, held: _Held) -> None:
        """Place a new unit among the reads and changes of a role's parameters."""
        task = held.task
        if task.changes:
            role = self._roles.setdefault(task.changes, _Role())
            for earlier in (*role.readers.values(), *role.writers.values()):
                held.wait_for(earlier)
            role.writers[held.unit] = held
        if task.reads is not None:
            role = self._roles.setdefault(task.reads.role, _Role())
            for writer in role.writers.values():
                if writer.unit.step <= task.reads.newest or writer.offered:
                    held.wait_for(writer)
                else:
                    writer.wait_for(held)
            role.readers[held.unit] = held

    # ── what follows from an event ────────────────────────────────────────────────────────────────────────────────────
    def _mark_executed(self, held: _Held) -> None:
        held.executed = True
        self._ready.pop(held.unit, None)
        for name, role in self._roles_of(held):
            role.readers.pop(held.unit, None)
            role.writers.pop(held.unit, None)
            role.newest = held if held.task.changes == name else role.newest
        for later in held.unblocks:
            later.waits_for.discard(held)
            if not later.waits_for and not later.offered:
                self._ready[later.unit] = later
        held.unblocks.clear()
        self._note_recordable(held)
        self._note_finished(held)

    def _mark_recorded(self, held: _Held) -> None:
        held.recorded = True
        self._recordable.pop(held.unit, None)
        for later in held.awaited_by:
            later.needs_line_of.discard(held)
            self._note_recordable(later)
        held.awaited_by.clear()
        self._note_finished(held)

    def _note_version(self, held: _Held) -> None:
        """The unit will read, or change, the parameters that its roles have now."""
        for _, role in self._roles_of(held):
            if role.newest is not None:
                held.follow_line_of(role.newest)

    def _note_recordable(self, held: _Held) -> None:
        if held.recordable:
            self._recordable[held.unit] = held

    def _note_finished(self, held: _Held) -> None:
        if held.finished:
            self._steps[held.unit.step].unfinished -= 1
            self._forget_closed()

    def _forget_closed(self) -> None:
        """Drop the oldest steps as long as they are closed and nothing of them is to be replayed."""
        while self._steps:
            oldest, held = next(iter(self._steps.items()))
            if held.unfinished or not held.closed:
                return
            del self._steps[oldest]

    def _roles_of(self, held: _Held) -> list[tuple[str, _Role]]:
        """The roles that a unit changes or reads, where something changes them."""
        reads = held.task.reads
        names = {held.task.changes, "" if reads is None else reads.role}
        return [(name, self._roles[name]) for name in sorted(names) if name in self._roles]

    def _held(self, unit: Unit) -> _Held:
        step = self._steps.get(unit.step)
        if step is None or unit not in step.units:
            raise ValueError(f"{unit} is not among the units of the open steps {list(self._steps)}")
        return step.units[unit]

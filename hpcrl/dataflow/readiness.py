"""Which units may be sent, and which journal lines may be written: the master's core, a pure state machine.

It is told units (what each consumes, reads and changes) and what happened to them (executed, spilled, recorded), and
answers what may happen next. It derives nothing: whoever drives it knows the graph, or the script. It knows no workers,
files, clocks or rows.

What it keeps, for every unit of every open step:

- A unit is offered once, after everything that it consumes was executed. Units whose line an older attempt has written
  are never offered; a change of theirs that the checkpoint lacks is offered once more, as a replay.
- A role's changes run in the order in which they were told. A unit that reads a role's parameters reads the version
  that it names, and no other (`versions`). No change overwrites parameters that a unit is still to read, told or not.
- A line may be written after the lines of all that its unit consumed: its inputs, and the change that made the
  parameters which it read. So the journal is at every moment closed under "consumed".
- Steps close in order. One of which the driver says that more units follow neither closes nor lets the next one open.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hpcrl.dataflow.tasks import Task, Unit, Version
from hpcrl.dataflow.versions import Held, Versions


class Offer(NamedTuple):
    """A unit that may be sent now. A replay follows its record. `moves`: it is a move, of this to its replica."""

    unit: Unit
    replay: bool
    moves: Version | None = None


@dataclass
class _Step:
    """The units of an open step, how many of them are not both executed and recorded, and whether more follow."""

    units: dict[Unit, Held] = field(default_factory=dict)
    in_step: dict[str, list[Held]] = field(default_factory=dict)
    """By call, those that go in step."""
    unfinished: int = 0
    more: bool = False
    closed: bool = False


class Readiness:
    """The state of all open steps, of which `window` may be open at a time.

    Misuse (an unknown unit, a step out of order, a unit reported twice) raises ValueError and changes nothing.
    """

    def __init__(self, window: int = 2, may_change: Callable[[Task], bool] | None = None) -> None:
        """`may_change` says whether nobody is still to be told who reads what a change overwrites, where the driver
        knows that by more than the steps that are open; then steps open while others are told more of."""
        self.window = window
        self._may_change = may_change
        self._told = 0
        self._versions = Versions(came=self._note_ready, gone=self._mark_executed)
        self._steps: dict[int, _Step] = {}
        self._last_opened: int | None = None
        self._ended = False
        self._ready: dict[Unit, Held] = {}
        self._recordable: dict[Unit, Held] = {}

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    def can_open(self, step: int) -> bool:
        """Whether `step` is the next and there is room for it. The first step may be any."""
        return self._is_next(step) and self.unclosed < self.window

    @property
    def unclosed(self) -> int:
        """How many steps are open."""
        return sum(not held.closed for held in self._steps.values())

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
        """Make more units of a step known; its driver had said that they follow."""
        if step not in self._steps or not self._steps[step].more:
            raise ValueError(f"step {step} has no more units; only of a step that was opened with `more` others follow")
        self._tell(step, self._steps[step], tasks, more)

    def end(self) -> None:
        """No step opens after those that are open: no change waits for units that are still to be told."""
        self._ended = True

    def supports_cut(self, step: int) -> bool:
        """Whether whoever begins with the parameters of a step has what is still to be read."""
        later = (held for number, of in self._steps.items() if number > step for held in of.units.values())
        return all(held.recorded or self._versions.lasts(held.task.reads, step) for held in later)

    def knows(self, unit: Unit) -> bool:
        """Whether a unit was told, and is not forgotten."""
        return unit.step in self._steps and unit in self._steps[unit.step].units

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
    def offer(self, fits: Callable[[str], bool] = lambda call: True, moves: bool = True) -> list[Offer]:
        """All units that may be sent now and have not been offered, in the order in which they were told.

        Those of calls that do not fit stay, to be offered another time; so do moves without `moves`, and those that go
        in step, until all are ready that do.
        """
        ready = [held for held in self._ready.values() if moves or held.moves is None]
        free = {held.unit for held in ready if self._may_go(held) and fits(held.unit.call)}
        ready = sorted((self._ready[unit] for unit in free), key=lambda held: held.order)
        ready = [held for held in ready if not held.task.in_step or free.issuperset(self._in_step_with(held.unit))]
        for held in ready:
            del self._ready[held.unit]
            held.offered = True
            self._versions.offered(held)
        return [Offer(held.unit, held.replay, held.moves) for held in ready]

    def executed(self, unit: Unit) -> None:
        """The unit's outputs are in memory, or a role's parameters have changed."""
        held = self._held(unit)
        if not held.offered or held.executed:
            raise ValueError(f"{unit} was executed {'twice' if held.executed else 'without having been offered'}")
        self._mark_executed(held)

    def let_go(self, reads: Version) -> bool:
        """Whether a replica's parameters may go: it has this version, and nobody who was told is still to read it. It
        counts as empty from then on."""
        return self._versions.let_go(reads)

    def spilled(self, unit: Unit) -> None:
        """The file with the unit's outputs is published, or all files with what a change shows. Whether it was executed
        on all ranks may not be known yet."""
        held = self._held(unit)
        leaves_nothing = held.moves or (held.task.changes and not held.task.shows)
        if leaves_nothing or not held.offered or held.recorded:
            raise ValueError(f"{unit} has nothing to spill: it leaves no rows, was not offered, or is recorded")
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

    @property
    def all_finished(self) -> bool:
        """Whether no unit of an open step is unfinished."""
        return not any(step.unfinished for step in self._steps.values())

    # ── opening ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def _is_next(self, step: int) -> bool:
        is_told = self._may_change is not None or not self.more_follow
        return is_told and (self._last_opened is None or step == self._last_opened + 1)

    def _tell(self, step: int, into: _Step, tasks: Sequence[Task], more: bool) -> None:
        units = {task.unit: Held(task, self._told + index) for index, task in enumerate(tasks)}
        consumed = {task.unit: [self._known(unit, units) for unit in task.consumes] for task in tasks}
        for task in tasks:
            self._versions.refuse_overwritten(task)
        if again := sorted(units.keys() & into.units.keys()):
            raise ValueError(f"{again[0]} was told before")
        self._told += len(tasks)
        for held in units.values():
            for producer in consumed[held.unit]:
                held.wait_for(producer)
                held.follow_line_of(producer)
            self._versions.place(held)
        into.units.update(units)
        for held in units.values():
            if held.task.in_step:
                into.in_step.setdefault(held.unit.call, []).append(held)
        into.unfinished += len(units)
        into.more = more
        self._steps[step] = into
        for held in units.values():
            self._note_ready(held)

    def _known(self, unit: Unit, opening: dict[Unit, Held]) -> Held:
        return opening[unit] if unit in opening else self._held(unit)

    # ── what follows from an event ────────────────────────────────────────────────────────────────────────────────────
    def _mark_executed(self, held: Held) -> None:
        held.executed = True
        self._ready.pop(held.unit, None)
        self._versions.executed(held)
        for later in held.unblocks:
            later.waits_for.discard(held)
            if not later.waits_for:
                self._note_ready(later)
        held.unblocks.clear()
        self._note_recordable(held)
        self._note_finished(held)

    def _mark_recorded(self, held: Held) -> None:
        held.recorded = True
        self._recordable.pop(held.unit, None)
        for later in held.awaited_by:
            later.needs_line_of.discard(held)
            if not later.needs_line_of:
                self._note_recordable(later)
        held.awaited_by.clear()
        self._note_finished(held)

    def _in_step_with(self, unit: Unit) -> Iterator[Unit]:
        """Those of its call and step that have yet to be offered, itself among them."""
        return (held.unit for held in self._steps[unit.step].in_step[unit.call] if not held.offered)

    def _may_go(self, held: Held) -> bool:
        """Whether nothing that is told, or still to be told, comes first."""
        if not held.unhindered or not held.task.changes:
            return held.unhindered
        if self._may_change is not None:
            return self._may_change(held.task)
        return self._is_told(held.task.read_until)

    def _is_told(self, step: int) -> bool:
        """Whether all units up to this step are, as far as it and those before it open."""
        last = self._last_opened
        return last is not None and (min(step, last) if self._ended else step) <= last - self.more_follow

    def _note_ready(self, held: Held) -> None:
        if not held.waits_for and not held.offered and not held.executed:
            self._ready[held.unit] = held

    def _note_recordable(self, held: Held) -> None:
        if held.recordable:
            self._recordable[held.unit] = held

    def _note_finished(self, held: Held) -> None:
        if held.finished and held.moves is None:
            self._steps[held.unit.step].unfinished -= 1
            self._forget_closed()

    def _forget_closed(self) -> None:
        """Drop the oldest steps as long as they are closed and nothing of them is to be replayed."""
        while self._steps:
            oldest, held = next(iter(self._steps.items()))
            if held.unfinished or not held.closed:
                return
            del self._steps[oldest]

    def _held(self, unit: Unit) -> Held:
        if unit in self._versions.moves:
            return self._versions.moves[unit]
        step = self._steps.get(unit.step)
        if step is None or unit not in step.units:
            raise ValueError(f"{unit} is not among the units of the open steps {list(self._steps)}")
        return step.units[unit]

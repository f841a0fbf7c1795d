"""Which calls may be sent, and which journal lines may be written: the master's core, a pure state machine.

It is told what happened (steps opened, units executed, spilled, recorded) and answers what may happen next. It knows
no workers, files, clocks or rows; whoever drives it does the work.

What it keeps, for every unit of every open step:

- A unit is offered once, after everything that it reads was executed. Units whose line an older attempt has written are
  never offered; a train_step of theirs that the checkpoint lacks is offered once more, as a replay.
- A role's train_steps run in the order of steps. Calls on training data of step i read parameters that lack at most the
  last train_steps before step i, as many as the call's lag says (0: exactly those after step i-1); calls on evaluation
  data read those after the train_step of their own step, before the next. No train_step overwrites parameters that a
  call is still to read.
- A line may be written after the lines of all that its unit consumed: its inputs, and the train_step that made the
  parameters which it read. So the journal is at every moment closed under "consumed".
- Steps close in order.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import networkx as nx

from hpcrl.dataflow.graph import MFC, mfc_of, producers, topological_order, trained_by


@dataclass(frozen=True, order=True)
class Unit:
    """One data-parallel part of one call in one step; a train_step is one unit, part 0, on all of its role."""

    step: int
    call: str
    part: int

    def __str__(self) -> str:
        return f"step {self.step} {self.call}, part {self.part}"


@dataclass(frozen=True)
class Offer:
    """A unit that may be sent now. A replay follows its record."""

    unit: Unit
    replay: bool


@dataclass(eq=False)
class _Task:
    """A unit's state. `waits_for` and `needs_line_of` shrink to nothing; `unblocks` and `awaited_by` mirror them."""

    unit: Unit
    mfc: MFC
    place: tuple[int, int, int]  # (step, topological index of the call, part)
    ids: frozenset[str]
    replay: bool = False
    offered: bool = False
    executed: bool = False
    spilled: bool = False
    recorded: bool = False
    waits_for: set["_Task"] = field(default_factory=set)
    unblocks: list["_Task"] = field(default_factory=list)
    needs_line_of: set["_Task"] = field(default_factory=set)
    awaited_by: list["_Task"] = field(default_factory=list)

    @property
    def trains(self) -> bool:
        return self.mfc.kind == "train_step"

    @property
    def finished(self) -> bool:
        return self.executed and self.recorded

    @property
    def recordable(self) -> bool:
        return self.executed and not self.recorded and (self.spilled or self.trains) and not self.needs_line_of

    def wait_for(self, earlier: "_Task") -> None:
        if not earlier.executed and earlier not in self.waits_for:
            self.waits_for.add(earlier)
            earlier.unblocks.append(self)

    def follow_line_of(self, earlier: "_Task") -> None:
        if not earlier.recorded and earlier not in self.needs_line_of:
            self.needs_line_of.add(earlier)
            earlier.awaited_by.append(self)


@dataclass
class _Role:
    """Who reads and writes a trained role's parameters, in order, as far as it is not executed yet."""

    readers: dict[Unit, _Task] = field(default_factory=dict)
    writers: dict[Unit, _Task] = field(default_factory=dict)
    newest: _Task | None = None  # the train_step whose parameters the role has; None: those that the attempt began with


@dataclass
class _Step:
    """The units of an open step, and how many of them are not both executed and recorded."""

    tasks: dict[Unit, _Task]
    unfinished: int
    closed: bool = False


class Readiness:
    """The state of all open steps.

    Misuse (an unknown unit, a step out of order, a unit reported twice) raises ValueError and changes nothing.
    """

    def __init__(self, graph: nx.DiGraph, window: int = 2) -> None:
        self._graph = graph
        self._most_open = window + max((mfc_of(graph, call).lag for call in graph), default=0)
        self._order = {call: index for index, call in enumerate(topological_order(graph))}
        self._roles = {role: _Role() for role in trained_by(graph)}
        self._steps: dict[int, _Step] = {}
        self._last_opened: int | None = None
        self._ready: dict[Unit, _Task] = {}
        self._recordable: dict[Unit, _Task] = {}

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    def can_open(self, step: int) -> bool:
        """Whether `step` is the next and there is room: window + largest lag steps. The first step may be any."""
        unclosed = sum(not held.closed for held in self._steps.values())
        return self._is_next(step) and unclosed < self._most_open

    def open(self, step: int, calls: Collection[str], partitions: Mapping[str, Sequence[Sequence[str]]]) -> None:
        """Make the units of a step known: per call the sample ids of each part. A part without ids is no unit.

        In recovery more steps than the window has room for may be opened.
        """
        if not self._is_next(step):
            raise ValueError(f"step {step} cannot open after step {self._last_opened}; steps open one after another")
        by_call = self._make_tasks(step, calls, partitions)
        inputs = self._producing_tasks(by_call)
        tasks = {task.unit: task for of_call in by_call.values() for task in of_call}
        for task in tasks.values():
            for producer in inputs[task.unit]:
                task.wait_for(producer)
                task.follow_line_of(producer)
            self._order_versions(task)
        self._steps[step] = _Step(tasks, len(tasks))
        self._last_opened = step
        self._ready.update((unit, task) for unit, task in tasks.items() if not task.waits_for)

    def restore(self, recorded: Iterable[Unit], replay: Iterable[Unit]) -> None:
        """Take over what older attempts wrote, after the steps are open and before anything is offered.

        `recorded` is never offered. `replay` are train_steps whose line is there and whose effect is not in the
        checkpoint; they are offered in the order of versions.
        """
        again = [self._task(unit) for unit in replay]
        for task in again:
            if not task.trains:
                raise ValueError(f"{task.unit} is no train_step; only those are replayed")
            task.replay = True
        for task in sorted(again + [self._task(unit) for unit in recorded], key=lambda task: task.place):
            if not task.replay:
                task.offered = task.spilled = True
                self._mark_executed(task)
            self._mark_recorded(task)

    def was_closed(self, step: int) -> None:
        """An older attempt has written that `step` closed: it takes no room and is not closable again."""
        self._steps[step].closed = True
        self._forget_closed()

    def closable(self) -> list[int]:
        """The steps that may close now, oldest first."""
        found = []
        for step, held in self._steps.items():
            if held.unfinished:
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
        """All units that may be sent now and have not been offered, ordered by step, call (topologically) and part.

        Those of calls that do not fit stay, to be offered another time.
        """
        free = (task for task in self._ready.values() if not task.waits_for and fits(task.unit.call))
        ready = sorted(free, key=lambda task: task.place)
        for task in ready:
            del self._ready[task.unit]
            task.offered = True
            self._note_version(task)
        return [Offer(task.unit, task.replay) for task in ready]

    def executed(self, unit: Unit) -> None:
        """The unit's outputs are in memory, or its role's parameters have changed."""
        task = self._task(unit)
        if not task.offered or task.executed:
            raise ValueError(f"{unit} was executed {'twice' if task.executed else 'without having been offered'}")
        self._mark_executed(task)

    def spilled(self, unit: Unit) -> None:
        """The file with the unit's outputs is published. Whether it was executed on all ranks may not be known yet."""
        task = self._task(unit)
        if task.trains or not task.offered or task.recorded:
            raise ValueError(f"{unit} has nothing to spill: it trains, was not offered, or is recorded")
        task.spilled = True
        self._note_recordable(task)

    def recordable(self) -> list[Unit]:
        """The units whose journal lines may be written now."""
        return [task.unit for task in sorted(self._recordable.values(), key=lambda task: task.place)]

    def recorded(self, unit: Unit) -> None:
        """The unit's journal line is written."""
        if unit not in self._recordable:
            raise ValueError(f"the line of {unit} may not be written now; see recordable()")
        self._mark_recorded(self._recordable[unit])

    def unfinished(self) -> list[Unit]:
        """The units of open steps that are not yet both executed and recorded."""
        tasks = (task for held in self._steps.values() for task in held.tasks.values())
        return [task.unit for task in sorted(tasks, key=lambda task: task.place) if not task.finished]

    # ── opening ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def _is_next(self, step: int) -> bool:
        return self._last_opened is None or step == self._last_opened + 1

    def _make_tasks(
        self, step: int, calls: Collection[str], partitions: Mapping[str, Sequence[Sequence[str]]]
    ) -> dict[str, list[_Task]]:
        """The units of each call, calls in topological order."""
        unknown = sorted(set(calls) - self._order.keys()) or sorted(set(calls) - partitions.keys())
        if unknown:
            raise ValueError(f"step {step}: calls {unknown} are not in the graph or have no partition")
        by_call = {}
        for call in sorted(calls, key=self._order.__getitem__):
            mfc, parts = mfc_of(self._graph, call), [frozenset(ids) for ids in partitions[call]]
            if sum(map(len, parts)) != len(frozenset().union(*parts)):
                raise ValueError(f"step {step} {call}: a sample is in two parts")
            if mfc.kind == "train_step":
                parts = [frozenset().union(*parts)]
            by_call[call] = [
                _Task(Unit(step, call, part), mfc, (step, self._order[call], part), ids)
                for part, ids in enumerate(parts)
                if ids
            ]
        return by_call

    def _producing_tasks(self, by_call: Mapping[str, list[_Task]]) -> dict[Unit, list[_Task]]:
        """Unit → the units that make its inputs: the parts of its producers that share a sample with it."""
        found: dict[Unit, list[_Task]] = {task.unit: [] for of_call in by_call.values() for task in of_call}
        maker = {call: {sample: task for task in tasks for sample in task.ids} for call, tasks in by_call.items()}
        for call, tasks in by_call.items():
            for source in producers(self._graph, call):
                makers = maker.get(source, {})
                for task in tasks:
                    missing = task.ids - makers.keys()
                    if missing:
                        raise ValueError(
                            f"{task.unit} needs {sorted(missing)[:5]} of {source}, which has no such samples"
                        )
                    found[task.unit] += {makers[sample] for sample in task.ids}
        return found

    def _order_versions(self, task: _Task) -> None:
        """Place a new unit among the reads and writes of its role's parameters.

        Units come here step by step in topological order: before a train_step come the calls of its step that read what
        it overwrites, after it those on evaluation data.
        """
        role = self._roles.get(task.mfc.role)
        if role is None:
            return
        if task.trains:
            for earlier in (*role.readers.values(), *role.writers.values()):
                task.wait_for(earlier)
            role.writers[task.unit] = task
            return
        newest_needed = task.unit.step if task.mfc.dataset == "eval" else task.unit.step - 1 - task.mfc.lag
        for writer in role.writers.values():
            if writer.unit.step <= newest_needed or writer.offered:
                task.wait_for(writer)
            else:
                writer.wait_for(task)
        role.readers[task.unit] = task

    # ── what follows from an event ────────────────────────────────────────────────────────────────────────────────────
    def _mark_executed(self, task: _Task) -> None:
        task.executed = True
        self._ready.pop(task.unit, None)
        role = self._roles.get(task.mfc.role)
        if role is not None:
            role.readers.pop(task.unit, None)
            role.writers.pop(task.unit, None)
        if role is not None and task.trains:
            role.newest = task
        for later in task.unblocks:
            later.waits_for.discard(task)
            if not later.waits_for and not later.offered:
                self._ready[later.unit] = later
        task.unblocks.clear()
        self._note_recordable(task)
        self._note_finished(task)

    def _mark_recorded(self, task: _Task) -> None:
        task.recorded = True
        self._recordable.pop(task.unit, None)
        for later in task.awaited_by:
            later.needs_line_of.discard(task)
            self._note_recordable(later)
        task.awaited_by.clear()
        self._note_finished(task)

    def _note_version(self, task: _Task) -> None:
        """The unit will read, or change, the parameters that its role has now."""
        role = self._roles.get(task.mfc.role)
        if role is not None and role.newest is not None:
            task.follow_line_of(role.newest)

    def _note_recordable(self, task: _Task) -> None:
        if task.recordable:
            self._recordable[task.unit] = task

    def _note_finished(self, task: _Task) -> None:
        if task.finished:
            self._steps[task.unit.step].unfinished -= 1
            self._forget_closed()

    def _forget_closed(self) -> None:
        """Drop the oldest steps as long as they are closed and nothing of them is to be replayed."""
        while self._steps:
            oldest, held = next(iter(self._steps.items()))
            if held.unfinished or not held.closed:
                return
            del self._steps[oldest]

    def _task(self, unit: Unit) -> _Task:
        held = self._steps.get(unit.step)
        if held is None or unit not in held.tasks:
            raise ValueError(f"{unit} is not among the units of the open steps {list(self._steps)}")
        return held.tasks[unit]

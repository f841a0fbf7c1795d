"""What of a history is usable: valid checkpoints, whole spills, and what closed steps have left for their archives.

Reads and verifies, shards apart: of these it compares names and sizes, and whoever loads them finds what else is wrong.
Changes nothing. Knows no attempts to come: `recovery` decides where one goes on.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import msgspec

from hpcrl.durable.checkpoints import Manifest, read_manifest
from hpcrl.durable.cuts import misses
from hpcrl.durable.files import DamagedFileError, FileRef
from hpcrl.durable.history import History, believed_count, checkpoint_lines, other_bits, read_history
from hpcrl.durable.journal import (
    Archived,
    Checkpointed,
    Chosen,
    Closed,
    Compacted,
    Done,
    Event,
    Opened,
    Pruned,
    Trained,
)
from hpcrl.durable.metrics_log import rows_shown
from hpcrl.durable.once import Returned
from hpcrl.durable.retention import LEAST_KEPT
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.spills import SpillRef, group_name
from hpcrl.durable.step_lines import StepLines, steps_in


class UnitKey(NamedTuple):
    """One part of one call of one step."""

    step: int
    call: str
    part: int


class Recorded(NamedTuple):
    """A finished unit: its line, and where its outputs are now."""

    done: Done
    spill: SpillRef


@dataclass
class StepRecord:
    """What the events say of one step. `candidates` are the places of a unit's outputs, the latest last."""

    lines: StepLines
    closed: bool = False
    archived: bool = False
    candidates: dict[UnitKey, list[Recorded]] = field(default_factory=dict)
    trained: dict[str, Trained] = field(default_factory=dict)
    returned: dict[UnitKey, Returned] = field(default_factory=dict)


@dataclass(frozen=True)
class Leavings:
    """What a step has left of which its archive is made: `parts` by call and part, and what its train steps have shown.

    `awaited` are units that are made again because their files are damaged; what is `lost` nobody makes again.
    """

    lines: StepLines
    parts: Mapping[tuple[str, int], SpillRef]
    shown: Mapping[str, tuple[FileRef, ...]]
    awaited: frozenset[tuple[str, int]] = frozenset()
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Survey:
    """What of a history is usable: how many lines count, the valid checkpoints (newest first), and the whole spills.

    `manifests` and `spills` map the names in the lines to the files as they are now called. `rows` close steps up to
    the newest checkpoint whose own lines are damaged.
    """

    history: History
    count: int
    checkpoints: tuple[Manifest, ...]
    manifests: Mapping[str, FileRef]
    spills: Mapping[str, FileRef]
    damage: tuple[str, ...]
    rows: tuple[Closed, ...] = ()

    @property
    def events(self) -> tuple[Event, ...]:
        lines = self.history.lines[: self.count]
        return tuple(line.event for line in lines if line.event is not None)


def carried_by(record: StepRecord) -> dict[UnitKey, list[Recorded]]:
    """The units of a step that the next one goes on from, each with its places, the latest last."""
    carried = (each for each in record.lines.carried if each.since)
    units = dict.fromkeys(UnitKey(record.lines.step, each.call, each.part) for each in carried)
    return {unit: record.candidates.get(unit, []) for unit in units}


def survey_run(run: RunDirectory, changed_roles: Collection[str], keep: int, before: int | None = None) -> Survey:
    """Verify what a recovery may need: the newest valid checkpoints, all spills behind the oldest of them, and those of
    steps before that have no archive yet; of what attempts older than `before` (all, if None) left.

    `keep` checkpoints are looked for, at least two; older ones are not read. Nor are older lines, if the recent ones
    have so many, or all that there are.
    """
    keep = max(keep, LEAST_KEPT)
    recent = survey_of(run, read_history(run, before, recent=keep), changed_roles, keep)
    if _suffices(recent, keep):
        return recent
    return survey_of(run, read_history(run, before), changed_roles, keep)


def survey_of(run: RunDirectory, history: History, changed_roles: Collection[str], keep: int) -> Survey:
    """The same, of this history, as far as it goes."""
    damage, pruned = list(history.damage), _pruned(history)
    lines = (line for line in checkpoint_lines(history) if line.step >= pruned)
    found = ((line, _valid_manifest(run, history, line, changed_roles, damage)) for line in lines)
    usable = ((line, manifest) for line, manifest in found if manifest is not None)
    whole = _Whole(run, history)
    valid = list(islice((each for each in usable if not _has_lost(whole, history, each[0].step, damage)), keep))
    checkpoints = tuple(manifest for _, manifest in valid)
    damage += other_bits(history, after=checkpoints[0].step if checkpoints else None)
    count = believed_count(history.lines, checkpoints[0].step if checkpoints else None)
    events = [line.event for line in history.lines[:count] if line.event is not None]
    _find_spills(whole, events, checkpoints[-1].step if checkpoints else None)
    damage += whole.damage
    manifests = {line.manifest.name: history.current(line.manifest) for line, _ in valid}
    rows = _rows_elsewhere(run, history, events, checkpoints[0].step) if history.damage and checkpoints else ()
    damage += [f"its row of step {row.step} is taken from metrics.jsonl" for row in rows]
    return Survey(history, count, checkpoints, manifests, whole.files, tuple(damage), rows)


def _rows_elsewhere(run: RunDirectory, history: History, events: Sequence[Event], cut: int) -> tuple[Closed, ...]:
    """Of steps up to the cut, which have closed, the rows that no line has any more, as `metrics.jsonl` shows them."""
    known = {event.step for event in events if isinstance(event, Closed)}
    known |= set() if history.older is None else {row.step for row in history.older.rows}
    found: dict[int, Closed] = {}
    for attempt in sorted(history.journals, reverse=True):
        shown = (row for row in rows_shown(run, attempt) if row.step <= cut and row.step not in known)
        found = {row.step: row for row in shown} | found
    return tuple(found.values())


def _suffices(survey: Survey, keep: int) -> bool:
    """Whether all lines could not say more: the line counts that says what older ones amount to, and no checkpoint is
    lacking that older lines may have."""
    older = survey.history.older
    if older is None:
        return True
    named = (line.event for line in survey.history.lines if isinstance(line.event, Checkpointed))
    steps = [event.step for event in named if event.step < older.lines.step]
    steps += [] if older.lines.checkpoint is None else [older.lines.checkpoint]
    is_all = max(steps, default=-1) < _pruned(survey.history)
    has_all = len(survey.checkpoints) >= (1 if is_all else keep)
    return has_all and older.told_by in survey.events


def _pruned(history: History) -> int:
    """The checkpoints of steps before this one were removed."""
    return max((line.event.before_step for line in history.lines if isinstance(line.event, Pruned)), default=0)


def steps_after(events: Sequence[Event], cut: int | None) -> dict[int, StepRecord]:
    """Steps after the cut in the order of their opening."""
    return _records(events, lambda step: cut is None or step > cut)


def record_of(events: Sequence[Event], step: int) -> StepRecord:
    return _records(events, step.__eq__)[step]


def unarchived_until(events: Sequence[Event], cut: int | None) -> dict[int, StepRecord]:
    """Closed steps up to the cut that have no line of their archive."""
    closed = {event.step for event in events if isinstance(event, Closed)}
    archived = {event.step for event in events if isinstance(event, Archived)}
    missing = {step for step in closed - archived if cut is not None and step <= cut}
    return _records(events, missing.__contains__) if missing else {}


def first_whole(candidates: Sequence[Recorded], spills: Mapping[str, FileRef]) -> Recorded | None:
    """The latest place whose file is whole, named as the file is now."""
    for done, spill in reversed(candidates):
        if spill.path in spills:
            return Recorded(done, msgspec.structs.replace(spill, file=spills[spill.path]))
    return None


def leavings(record: StepRecord, spills: Mapping[str, FileRef], over: bool) -> Leavings:
    """What there is of a step. With `over` nothing of it is made again: what is not whole is lost."""
    parts, missing, names = dict[tuple[str, int], SpillRef](), set[tuple[str, int]](), list[str]()
    for unit, candidates in record.candidates.items():
        found = first_whole(candidates, spills)
        if found is not None:
            parts[unit.call, unit.part] = found.spill
        else:
            missing.add((unit.call, unit.part))
            names.append(candidates[-1].spill.path)
    shown = {}
    for call, line in record.trained.items():
        shown[call] = tuple(spills[file.name] for file in line.shown if file.name in spills)
        if lacking := [file.name for file in line.shown if file.name not in spills]:
            missing.add((call, 0))
            names += lacking
    if over:
        return Leavings(record.lines, parts, shown, lost=tuple(names))
    return Leavings(record.lines, parts, shown, awaited=frozenset(missing))


def _records(events: Sequence[Event], wanted: Callable[[int], bool]) -> dict[int, StepRecord]:
    """By step, in the order of opening, but those set aside. Lines of a step before its opening say nothing."""
    made = steps_in(events)
    steps: dict[int, StepRecord] = {}
    for event in events:
        if isinstance(event, Opened) and wanted(event.step) and event.step in made:
            steps[event.step] = StepRecord(made[event.step])
        elif isinstance(event, Done | Returned | Compacted | Trained | Closed | Archived) and event.step in steps:
            _note(steps[event.step], event)
    return steps


def _note(step: StepRecord, event: Done | Returned | Compacted | Trained | Closed | Archived) -> None:
    if isinstance(event, Done):
        unit = UnitKey(event.step, event.call, event.part)
        step.candidates.setdefault(unit, []).append(Recorded(event, SpillRef(event.spill, event.group)))
    elif isinstance(event, Returned):
        step.returned[UnitKey(event.step, event.call, event.part)] = event
    elif isinstance(event, Compacted):
        for unit, candidates in step.candidates.items():
            spill = SpillRef(event.spill, group_name(unit.call, unit.part))
            candidates.append(Recorded(candidates[-1].done, spill))
    elif isinstance(event, Trained):
        step.trained[event.call] = event
    elif isinstance(event, Archived):
        step.archived = True
    else:
        step.closed = True


def _valid_manifest(
    run: RunDirectory, history: History, line: Checkpointed, changed_roles: Collection[str], damage: list[str]
) -> Manifest | None:
    try:
        manifest = read_manifest(run.files, history.current(line.manifest))
    except DamagedFileError as error:
        damage.append(error.damage)
        return None
    found = misses(run.files, manifest, changed_roles)
    damage += found
    return None if found else manifest


class _Whole:
    """Which files are whole, and what they are called now; each is read once."""

    def __init__(self, run: RunDirectory, history: History) -> None:
        self.files: dict[str, FileRef] = {}
        """By their names in the lines."""
        self._run = run
        self._history = history
        self._verdicts: dict[str, str | None] = {}

    @property
    def damage(self) -> list[str]:
        return [text for text in self._verdicts.values() if text is not None]

    def look(self, file: FileRef) -> bool:
        current = self._history.current(file)
        if file.name not in self._verdicts:
            self._verdicts[file.name] = self._run.files.damage(current)
        if self._verdicts[file.name] is None:
            self.files[file.name] = current
        return self._verdicts[file.name] is None

    def look_for(self, candidates: Sequence[Recorded]) -> bool:
        """Whether one is, the latest first."""
        return any(self.look(spill.file) for _, spill in reversed(candidates))


def _has_lost(whole: _Whole, history: History, step: int, damage: list[str]) -> bool:
    """Whether a file is not whole with which the next step goes on, so that the checkpoint of a step cannot be used."""
    events = [line.event for line in history.lines if line.event is not None]
    if not any(isinstance(event, Chosen) and event.step == step and event.carried for event in events):
        return False
    places = carried_by(record_of(events, step))
    lost = [unit for unit, candidates in places.items() if not whole.look_for(candidates)]
    named = (f"step {step} {unit.call}, part {unit.part}" for unit in lost)
    damage += [f"{unit}, which step {step + 1} goes on from, is lost" for unit in named]
    return bool(lost)


def _find_spills(whole: _Whole, events: Sequence[Event], cut: int | None) -> None:
    """For each unit after the cut, and of steps without archive, the latest place that is whole, and all that train
    steps have shown that is still to be archived."""
    for step in (*steps_after(events, cut).values(), *unarchived_until(events, cut).values()):
        for candidates in step.candidates.values():
            whole.look_for(candidates)
        for line in step.trained.values():
            for file in () if step.archived else line.shown:
                whole.look(file)

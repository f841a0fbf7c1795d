"""From what older attempts left to where a new one goes on: what to read, what to replay, what is lost.

`plan_recovery` is pure. `recover` does it for an attempt: it verifies the files, links them under the attempt's number,
publishes `adopted.json`, from which moment the attempt counts, and begins its journal. Knows no processes, no models.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import msgspec

from hpcrl.dataflow.graph import recipe_name
from hpcrl.durable.checkpoints import Manifest, read_manifest
from hpcrl.durable.exclusive import sync_directory
from hpcrl.durable.files import FileRef
from hpcrl.durable.history import has_grown, has_new_attempt
from hpcrl.durable.journal import (
    Accepted,
    Adopted,
    Blended,
    Closed,
    Done,
    Event,
    Exported,
    Numerics,
    Trained,
    encode_line,
)
from hpcrl.durable.older_lines import FoldedJournal, OlderFold, archives_in
from hpcrl.durable.once import Returned
from hpcrl.durable.recent import Older
from hpcrl.durable.retention import remove_litter
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.step_lines import StepLines, steps_in
from hpcrl.durable.survey import (
    Leavings,
    Recorded,
    Survey,
    UnitKey,
    carried_by,
    first_whole,
    leavings,
    record_of,
    steps_after,
    survey_run,
    unarchived_until,
)
from hpcrl.errors import StoppedError

READS_OF_A_MOVING_RUN = 5
DAMAGE_SHOWN = 20


class Before(NamedTuple):
    """The last step that is over, and of what it leaves to the next one the units that have made that."""

    lines: StepLines
    carried: Mapping[UnitKey, Recorded]


class ExportsLeft(NamedTuple):
    """The steps, from the checkpoint's on, after which roles are exported, and what of this is done."""

    steps: frozenset[int] = frozenset()
    done: frozenset[tuple[int, str]] = frozenset()


@dataclass(frozen=True)
class RecoveryPlan:
    """Where an attempt goes on. Steps up to the checkpoint's are over; all else concerns later ones.

    `opened` are the later steps that were opened, with all lines of their making, `closed` those of them that were
    closed; `before` is the step before them. The outputs of `recorded` units are read; `returned` is all that calls of
    methods of JSON have left.
    `replay` are train steps to be executed again, in this order. `lost` units were finished, but their files are
    damaged: they are computed again, as their lines say. `metrics` are the rows of all closed steps, the earlier ones
    included. `numerics` are those of the newest train_step or blend of each call. `left` is what open steps, and closed
    ones without an archive, have left, the latter also of before the checkpoint.
    """

    checkpoint: Manifest | None = None
    kept: tuple[Manifest, ...] = ()
    opened: tuple[StepLines, ...] = ()
    before: Before | None = None
    closed: frozenset[int] = frozenset()
    recorded: Mapping[UnitKey, Recorded] = field(default_factory=dict)
    returned: Mapping[UnitKey, Returned] = field(default_factory=dict)
    replay: tuple[Trained, ...] = ()
    lost: Mapping[UnitKey, Done] = field(default_factory=dict)
    metrics: tuple[Closed, ...] = ()
    exports: ExportsLeft = field(default_factory=ExportsLeft)
    left: Mapping[int, Leavings] = field(default_factory=dict)
    accepted: Mapping[str, str] = field(default_factory=dict)
    numerics: Mapping[str, Numerics] = field(default_factory=dict)
    damage: tuple[str, ...] = ()

    @property
    def last_opened(self) -> StepLines | None:
        """Maybe a step that is over."""
        return self.opened[-1] if self.opened else None if self.before is None else self.before.lines

    @cached_property
    def settings_of(self) -> Mapping[UnitKey, int]:
        """The versions of the run's settings that units run under which are executed again."""
        replayed = {UnitKey(line.step, line.call, 0): line.settings for line in self.replay}
        return replayed | {unit: line.settings for unit, line in self.lost.items()}

    @property
    def older_settings(self) -> frozenset[int]:
        """The versions of the run's settings under which something is executed again, or asked for by its script."""
        asked = {line.settings for lines in self.opened for line in lines.asks}
        ended = {lines.turn.settings for lines in self.opened if lines.turn is not None}
        return frozenset({*self.settings_of.values(), *asked, *ended})

    def describe(self, settings: int = 0) -> str:
        """What will be read, replayed and run under this version of the settings, and what was found damaged."""
        return "\n".join(_describe(self, settings))


def plan_recovery(
    events: Sequence[Event],
    checkpoints: Sequence[Manifest],
    spills: Mapping[str, FileRef],
    changed_by: Mapping[str, str],
    damage: Sequence[str] = (),
    older: Older | None = None,
    rows: Sequence[Closed] = (),
) -> RecoveryPlan:
    """Decide where to go on.

    `events` are the believed ones, which follow `older` ones, `checkpoints` the valid ones, newest first. `rows` close
    steps whose own lines are damaged. `spills` maps the name of every spill that is whole, as the events have it, to
    the file now. `changed_by` maps calls that change roles, in the order in which a step executes them, to the roles.
    """
    checkpoint = checkpoints[0] if checkpoints else None
    cut = None if checkpoint is None else checkpoint.step
    recorded, lost, replay = dict[UnitKey, Recorded](), dict[UnitKey, Done](), list[Trained]()
    made, steps = steps_in(events), steps_after(events, cut)
    left = {number: leavings(step, spills, over=True) for number, step in unarchived_until(events, cut).items()}
    left |= {number: leavings(step, spills, over=False) for number, step in steps.items() if not step.archived}
    for step in steps.values():
        for unit, candidates in step.candidates.items():
            found = first_whole(candidates, spills)
            if found is None:
                lost[unit] = candidates[-1].done
            else:
                recorded[unit] = found
        replay += _in_order(step.trained, changed_by)
    closed = (*rows, *(() if older is None else older.rows), *(event for event in events if isinstance(event, Closed)))
    accepted, numerics = _from_first_to_last(events, older)
    return RecoveryPlan(
        checkpoint=checkpoint,
        kept=tuple(checkpoints),
        opened=tuple(step.lines for step in steps.values()),
        before=_before((lines for number, lines in made.items() if number not in steps), events, spills),
        closed=frozenset(number for number, step in steps.items() if step.closed),
        recorded=recorded,
        returned={unit: line for step in steps.values() for unit, line in step.returned.items()},
        replay=tuple(sorted(replay, key=lambda line: line.version)),
        lost=lost,
        metrics=tuple(row for _, row in sorted({row.step: row for row in closed}.items())),
        exports=_exports_from(0 if cut is None else cut, made.values(), events),
        left=left,
        accepted=accepted,
        numerics=numerics,
        damage=tuple(damage),
    )


def _exports_from(first: int, made: Iterable[StepLines], events: Sequence[Event]) -> ExportsLeft:
    return ExportsLeft(
        frozenset(lines.step for lines in made if lines.opened.export and lines.step >= first),
        frozenset((event.step, event.role) for event in events if isinstance(event, Exported) and event.step >= first),
    )


def _before(over: Iterable[StepLines], events: Sequence[Event], spills: Mapping[str, FileRef]) -> Before | None:
    """A checkpoint counts only where all is whole that its step leaves to the next one."""
    lines = max(over, key=lambda each: each.step, default=None)
    if lines is None:
        return None
    units = carried_by(record_of(events, lines.step)).items() if lines.carried else ()
    found = ((unit, first_whole(candidates, spills)) for unit, candidates in units)
    return Before(lines, {unit: place for unit, place in found if place is not None})


def _in_order(trained: Mapping[str, Trained], changed_by: Mapping[str, str]) -> list[Trained]:
    """A step's changes of roles, as it executes them; a script may make a call again."""
    names, places = {call: recipe_name(call, changed_by) for call in trained}, list(changed_by)
    known = [call for call in trained if names[call] in changed_by]
    return [trained[call] for call in sorted(known, key=lambda call: places.index(names[call]))]


def _from_first_to_last(events: Sequence[Event], older: Older | None) -> tuple[dict[str, str], dict[str, Numerics]]:
    """The inputs that were accepted, and what the newest change of a role by each call depended on."""
    accepted = {} if older is None else dict(older.lines.accepted)
    newest = {} if older is None else {call: (it.version, it.numerics) for call, it in older.lines.numerics.items()}
    for event in events:
        if isinstance(event, Accepted):
            accepted[event.name] = event.fingerprint
        elif isinstance(event, Trained) and event.version >= newest.get(event.call, (0,))[0]:
            newest[event.call] = event.version, event.numerics
    return accepted, {call: numerics for call, (_, numerics) in newest.items()}


def plan_next_attempt(run: RunDirectory, changed_by: Mapping[str, str], keep: int = 2) -> RecoveryPlan:
    """What the next attempt would do, from a look that changes nothing."""
    survey = survey_run(run, changed_by.values(), keep)
    return plan_surveyed(survey, survey.checkpoints, survey.spills, changed_by)


def plan_surveyed(
    survey: Survey, checkpoints: Sequence[Manifest], spills: Mapping[str, FileRef], changed_by: Mapping[str, str]
) -> RecoveryPlan:
    """As `plan_recovery`, of what was surveyed."""
    older, rows = survey.history.older, survey.rows
    return plan_recovery(survey.events, checkpoints, spills, changed_by, survey.damage, older, rows)


def recover(
    run: RunDirectory, attempt: int, changed_by: Mapping[str, str], keep: int = 2
) -> tuple[RecoveryPlan, FoldedJournal]:
    """Take the run over: link what is usable under this attempt's number, publish what it believes, begin its journal.

    Files can vanish meanwhile only if an older attempt is still alive (it compacts and prunes what is its own, or
    older): then its newer lines say so, and all is read again. An older attempt that goes on *after* `adopted.json` is
    published harms nobody: its later lines are behind the believed prefix, and it can unlink none of our names.

    Raises StoppedError where a newer attempt has taken over, or an older one does not stop changing the run.
    """
    survey = _link_usable(run, attempt, changed_by.values(), keep)
    files = {name: _ours(run, attempt, file) for name, file in (*survey.manifests.items(), *survey.spills.items())}
    if run.superseded(attempt):
        raise StoppedError(f"attempt {attempt} of {run.root} is superseded by attempt {run.newest_attempt()}")
    names = {name: file.name for name, file in files.items()}
    adopted = Adopted(survey.history.prefixes(survey.count), names)
    run.files.publish(run.adopted(attempt), encode_line(adopted), "adopted")
    journal = _journal_behind(run, attempt, survey)
    journal.append([adopted])
    checkpoints = [read_manifest(run.files, files[name]) for name in survey.manifests]
    plan = plan_surveyed(survey, checkpoints, files, changed_by)
    remove_litter(run, attempt, _archived(survey), {step for step, of in plan.left.items() if of.lost})
    return plan, journal


def _journal_behind(run: RunDirectory, attempt: int, survey: Survey) -> FoldedJournal:
    """Begin an attempt's journal, which knows what the lines that it believes amount to."""
    history = survey.history
    fold = OlderFold(None, ()) if history.older is None else OlderFold(history.older.lines, history.older.rows)
    for number, lines in groupby(history.lines[: survey.count], key=lambda line: line.attempt):
        fold.begin(number)
        part = history.journals[number]
        begin = part.start
        for line in lines:
            fold.feed(line.event, part.data[begin - part.start : line.end - part.start])
            begin = line.end
    fold.begin(attempt)
    return FoldedJournal(run.files.open_log(run.journal(attempt), "journal"), fold)


def _archived(survey: Survey) -> set[tuple[int, int]]:
    """(step, attempt) of the archives that lines name."""
    older = survey.history.older
    found = set() if older is None else set(older.lines.archived)
    return found | archives_in(survey.events)


def _link_usable(run: RunDirectory, attempt: int, changed_roles: Collection[str], keep: int) -> Survey:
    """Survey the run and link all that is usable, again and again until nothing changed meanwhile."""
    linked: set[Path] = set()
    for _ in range(READS_OF_A_MOVING_RUN):
        survey = survey_run(run, changed_roles, keep, before=attempt)
        usable = _usable(survey)
        vanished = not _link_all(run, attempt, usable, linked)
        explained = survey.damage and has_grown(run, survey.history)
        if not vanished and not explained and not has_new_attempt(run, survey.history, before=attempt):
            break
    else:
        raise StoppedError(
            f"attempt {survey.history.published} is still changing {run.root}, and attempt {attempt} cannot take over.",
            "Stop it with `hpcrl stop`, then resume.",
        )
    for path in linked - {run.renumbered(file.name, attempt) for file in usable}:
        run.remove(path, attempt, "adopt")
    return survey


def _ours(run: RunDirectory, attempt: int, file: FileRef) -> FileRef:
    return msgspec.structs.replace(file, name=run.files.name(run.renumbered(file.name, attempt)))


def _usable(survey: Survey) -> list[FileRef]:
    """All files that an attempt takes over, as they are now called; a manifest comes after its shards."""
    shards = [shard for manifest in survey.checkpoints for of_role in manifest.roles.values() for shard in of_role]
    return [*shards, *survey.manifests.values(), *survey.spills.values()]


def _link_all(run: RunDirectory, attempt: int, files: Sequence[FileRef], linked: set[Path]) -> bool:
    """Link all files under our number, durably; False if one has vanished. `linked` collects the names made."""
    try:
        for file in files:
            path = run.renumbered(file.name, attempt)
            run.files.link(file, path, "adopt")
            linked.add(path)
    except FileNotFoundError:
        return False
    for folder in {path.parent for path in linked}:
        sync_directory(folder)
    return True


def _describe(plan: RecoveryPlan, settings: int) -> Iterator[str]:
    checkpoint = plan.checkpoint
    if checkpoint is None:
        yield "starts from the base weights: no checkpoint"
    else:
        roles = ", ".join(checkpoint.roles) or "no role changes"
        yield f"starts from the checkpoint of step {checkpoint.step}, written by attempt {checkpoint.attempt}: {roles}"
    yield f"reads {_some('finished part', [_unit(*unit) for unit in (*plan.recorded, *plan.returned)])}"
    blends = [line for line in plan.replay if isinstance(line, Blended)]
    trained = [line for line in plan.replay if line not in blends]
    yield f"replays {_some('train step', [f'step {line.step} {line.call}' for line in trained])}"
    if blends:
        yield f"replays {_some('blend', [f'step {line.step} {line.call}' for line in blends])}"
    if settings:
        yield from _by_settings(plan.replay, settings)
    if plan.lost:
        yield f"computes again {_some('finished part', [_unit(*unit) for unit in plan.lost])}"
    unclosed = [lines.named for lines in plan.opened if lines.step not in plan.closed]
    next_step = "the first step" if plan.last_opened is None else f"step {plan.last_opened.step + 1}"
    yield f"continues with {', '.join([*unclosed, next_step])}"
    for text in plan.damage[:DAMAGE_SHOWN]:
        yield f"damaged: {text}"
    if len(plan.damage) > DAMAGE_SHOWN:
        yield f"damaged: {len(plan.damage) - DAMAGE_SHOWN} more"


def _by_settings(replay: Sequence[Trained], newest: int) -> Iterator[str]:
    """Which train steps are replayed under which settings, and what all else runs under."""
    for version, lines in groupby(replay, key=lambda line: line.settings):
        steps = [line.step for line in lines]
        which = f"step {steps[0]}" if steps[0] == steps[-1] else f"steps {steps[0]}..{steps[-1]}"
        yield f"replays {which} under settings version {version}"
    yield f"runs what is new under settings version {newest}"


def _unit(step: int, call: str, part: int) -> str:
    return f"step {step} {call} part {part}"


def _some(what: str, names: Sequence[str], shown: int = 3) -> str:
    """`5 parts: a, b, c … e`."""
    if not names:
        return f"no {what}"
    listed = ", ".join(names[:shown]) + (f" … {names[-1]}" if len(names) > shown else "")
    return f"{len(names)} {what}{'s' if len(names) > 1 else ''}: {listed}"

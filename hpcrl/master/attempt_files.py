"""The files of one attempt: its journal, events and metrics, and the housekeeping behind closed steps.

Owns what this attempt writes besides spills, shards and what agents make of these. Knows nothing of workers. What is
done behind the work is journalled from `tidy`, by the thread that owns the journal.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from hpcrl.data.inputs import Inputs
from hpcrl.data.samples import SampleMeta
from hpcrl.durable.checkpoints import Manifest, SavedRole, write_manifest
from hpcrl.durable.files import FileRef
from hpcrl.durable.history import checkpoint_lines, read_history
from hpcrl.durable.journal import Accepted, Checkpointed, Damaged, Event, Exported
from hpcrl.durable.older_lines import FoldedJournal
from hpcrl.durable.once import Turn
from hpcrl.durable.origin import forked_from
from hpcrl.durable.recovery import RecoveryPlan, recover
from hpcrl.durable.retention import LEAST_KEPT
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.seen import refuse_changed
from hpcrl.durable.spills import SpillRef, read_meta
from hpcrl.durable.step_lines import StepLines
from hpcrl.errors import ExitCode, HpcrlError
from hpcrl.event_log import Entry, EventLog
from hpcrl.events import (
    AttemptBegun,
    AttemptEnded,
    CallFailed,
    CallStalled,
    CheckpointDamaged,
    DrainBegun,
    NodeLeaving,
    RoleExported,
    StepCheckpointed,
    StepClosed,
    WorkerEnded,
)
from hpcrl.events import Event as LifeCycle
from hpcrl.master.attempt_records import Whereabouts
from hpcrl.master.chores import Crew, Turns
from hpcrl.master.janitor import Janitor, Retention
from hpcrl.master.shown import kept_samples
from hpcrl.master.step_rows import StepRows
from hpcrl.master.verification import Verification, shards_by_rank
from hpcrl.placement.exporting import RoleExport
from hpcrl.placement.layouts import Ranks
from hpcrl.placement.plan import Plan
from hpcrl.progress import JournalWritten, Progress
from hpcrl.wire.chores import ChoreReport
from hpcrl.wire.messages import ShardsVerified, Verify

SHOWN_AT_ONCE = AttemptEnded | CallFailed | CallStalled | DrainBegun | NodeLeaving | WorkerEnded
"""Events before which `live.json` says what is under way then."""


class SupersededError(HpcrlError):
    """A newer attempt has adopted what this one wrote; nothing that this one does counts any more."""

    exit_code = ExitCode.NEVER_REQUEUE


def refuse_superseded(run: RunDirectory, number: int) -> None:
    """Raise SupersededError when a newer attempt counts."""
    if run.superseded(number):
        raise SupersededError(f"attempt {number} of {run.root} is superseded by attempt {run.newest_attempt()}")


def begin_attempt(
    run: RunDirectory, changing: Mapping[str, str], submission: str, keep: int, compacts: bool
) -> "AttemptFiles":
    """Claim the next number, take over what older attempts finished, and open this attempt's files.

    `changing` maps the calls that change roles to these, in the order in which a step makes them.
    """
    number = run.claim_attempt(submission)
    events = EventLog(run.events(number))
    recovery, journal = recover(run, number, changing, keep)
    journal.append([Accepted(name, print_) for name, print_ in run.accepted_by(submission).items()])
    return AttemptFiles(run, number, recovery, journal, events, keep, compacts)


@dataclass(frozen=True)
class Behind:
    """Fulfils `Appending`. `written` is told how long it took."""

    writing: Future[float]
    written: Callable[[float], None]

    @property
    def is_done(self) -> bool:
        return self.writing.done()

    def finish(self) -> None:
        self.written(self.writing.result())


class AttemptFiles:
    """Open from `begin_attempt` to `close`. Fulfils `AttemptRecords`."""

    def __init__(
        self,
        run: RunDirectory,
        number: int,
        recovery: RecoveryPlan,
        journal: FoldedJournal,
        events: EventLog,
        keep: int,
        compacts: bool,
    ) -> None:
        self.number = number
        self.recovery = recovery
        self._events = events
        self._run = run
        self._journal = journal
        self._rows = StepRows(run, number, [row.metrics for row in recovery.metrics])
        self._keep = max(keep, LEAST_KEPT)
        loaded = [] if recovery.checkpoint is None else [recovery.checkpoint.step]
        self._verification = Verification(recovery.kept, loaded, self._keep)
        self._exported = set(recovery.exports.done)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._writing: Future[float] | None = None
        self._janitor = Janitor(run, number, recovery, Retention(self._keep, compacts), self.append)

    @property
    def fault(self) -> Callable[[str], None]:
        """Told at each point where a test may strike."""
        return self._run.files.fault

    def refuse_superseded(self) -> None:
        """Raise SupersededError when a newer attempt counts."""
        refuse_superseded(self._run, self.number)

    def publish_plan(self, plan: Plan) -> None:
        """For the agents and workers of this attempt, before they are told to start."""
        self._run.files.publish(self._run.plan(self.number), plan.to_json(), "plan")

    def worker_log(self, rank: int) -> str:
        """What the log of a worker of this attempt is called, in the run directory."""
        return self._run.files.name(self._run.worker_log(self.number, f"worker-{rank}"))

    # ── what is read ────────────────────────────────────────────────────────────────────────────────────────────────
    def inputs(self) -> dict[str, str]:
        """Setting → fingerprint of what it names, as it was submitted or accepted since."""
        claim = self._run.read_claim(self.number)
        accepted = {} if claim is None else self._run.accepted_by(claim.submission)
        return {**self._run.read_run().inputs, **self.recovery.accepted, **accepted}

    def refuse_changed(self, inputs: Inputs) -> None:
        """Raise DataError where files are not what they were."""
        refuse_changed(self._run, self.inputs(), inputs)

    def meta_of(self, spill: SpillRef) -> SampleMeta:
        """What is known of the rows of a unit that an older attempt finished."""
        return read_meta(self._run.files.path(spill.file), spill.group)

    # ── events ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def note(self, event: LifeCycle) -> Entry:
        """Write an event down, and count what it says."""
        if isinstance(event, SHOWN_AT_ONCE):
            self._rows.show(at_once=True)
        entry = self._events.write(event)
        self._rows.feed(entry)
        if isinstance(event, AttemptBegun):
            self._rows.show(at_once=True)
        return entry

    def follow(self, progress: Progress) -> None:
        """Count what something cost."""
        self._rows.follow(progress)

    def show(self) -> None:
        """What is under way, for those who look at the run: cheap, and to be called again and again."""
        self._rows.show()

    def watch(self, whereabouts: Whereabouts) -> None:
        """From now on workers say what they do."""
        self._rows.whereabouts = whereabouts

    # ── the journal ───────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def loops_again(self) -> bool:
        checkpoint, fork = self.recovery.checkpoint, forked_from(self._run)
        if checkpoint is None:
            return False
        if fork is not None and fork.step == checkpoint.step:
            return True
        since = (self._run.read_verdict(number) for number in range(checkpoint.attempt, self.number))
        return any(verdict is not None and verdict.state == "done" for verdict in since)

    def append(self, events: Sequence[Event]) -> None:
        """Make events durable. Raises SupersededError, with nothing written, when a newer attempt counts."""
        self.refuse_superseded()
        self._join()
        self._written(events, self._write(events))

    def append_behind(self, events: Sequence[Event]) -> Behind:
        """As `append`, on a thread of its own: whatever is appended before that is done follows it."""
        self.refuse_superseded()
        self._join()
        self._writing = self._writer.submit(self._write, events)
        return Behind(self._writing, partial(self._written, events))

    def _join(self) -> None:
        """Wait for what is written behind."""
        if self._writing is not None:
            self._writing.result()

    def _write(self, events: Sequence[Event]) -> float:
        begun = time.monotonic()
        self._journal.append(events)
        return time.monotonic() - begun

    def _written(self, events: Sequence[Event], seconds: float) -> None:
        self.follow(JournalWritten(len(events), seconds))
        self._janitor.written(events)

    # ── what is saved ─────────────────────────────────────────────────────────────────────────────────────────────────
    def saved_roles(self) -> dict[str, SavedRole]:
        """What the checkpoint has that this attempt starts from."""
        manifest = self.recovery.checkpoint
        if manifest is None:
            return {}
        return {role: SavedRole(refs, manifest.digests.get(role, "")) for role, refs in manifest.roles.items()}

    def damaged(self, what: str) -> None:
        """What was loaded is not what that checkpoint was: the next attempt takes the one before."""
        checkpoint = self.recovery.checkpoint
        assert checkpoint is not None, what
        self._damaged(checkpoint.step, what)

    def _damaged(self, step: int, what: str) -> None:
        history = read_history(self._run, recent=self._keep + 1)
        [named] = [line for line in checkpoint_lines(history) if line.step == step]
        self.append([Damaged(step, named.manifest, what)])
        self.note(CheckpointDamaged(step, what))

    def checkpoint_digests(self) -> dict[str, str]:
        """Role → digest of its parameters in the checkpoint that this attempt starts from."""
        manifest = self.recovery.checkpoint
        return {} if manifest is None else dict(manifest.digests)

    def has_checkpoint(self, step: int) -> bool:
        return self._verification.has(step)

    def has_export(self, step: int, role: str) -> bool:
        return (step, role) in self._exported

    def checkpointed(
        self,
        of: StepLines,
        roles: Mapping[str, Sequence[FileRef]],
        digests: Mapping[str, str],
        earlier: tuple[Turn, ...] = (),
    ) -> None:
        """All shards of a cut are there and its step is closed: name it. `earlier` as in its manifest."""
        shards = {role: tuple(refs) for role, refs in roles.items()}
        step, data = of.step, (of.opened.epoch, of.cursor)
        self._join()
        older = self._journal.older_than(step, self._rows.first)
        manifest = Manifest(step, self.number, shards, *data, dict(digests), older, of.turn, earlier)
        path = self._run.manifest(step, self.number)
        ref = write_manifest(self._run.files, path, manifest)
        self.append([Checkpointed(step, ref)])
        self._verification.add(manifest)
        self.note(StepCheckpointed(step, sum(s.size for refs in shards.values() for s in refs)))

    def verify(self, homes: Mapping[str, Ranks], order: Callable[[int, Verify], None]) -> None:
        """Have workers read the checkpoints back that are kept, each once; `homes` are the ranks of changed roles."""
        due = self._verification.due()
        for manifest in due:
            shares = shards_by_rank(manifest, homes)
            self._verification.begun(manifest.step, shares)
            for rank, shards in shares.items():
                order(rank, Verify(manifest.step, shards))
        if due:
            self._prune()  # of checkpoints without shards there is nothing to read

    def verified(self, told: ShardsVerified) -> None:
        """A worker has read shards back: once all of what is kept was, drop what it makes superfluous."""
        if damage := self._verification.told(told):
            self._damaged(told.step, damage)
        else:
            self._prune()

    def _prune(self) -> None:
        if kept := self._verification.verified():
            self._janitor.prune(kept)

    def export(self, step: int, role: str, export: RoleExport, done: Callable[[], None]) -> None:
        """All files of an export are written that workers write: add the others and publish it, behind the work."""

        def publish() -> Callable[[], None]:
            path, files = self._run.export(role, step), self._run.files
            files.remove_tree(self._run.export_shards(role, step, self.number))
            parts = self._run.export_parts(role, step, self.number)
            export.write_description(parts)
            self.refuse_superseded()
            files.publish_prepared(parts, path, "export")
            return lambda: self._published(step, role, files.name(path), done)

        self._janitor.do(publish)

    def _published(self, step: int, role: str, path: str, done: Callable[[], None]) -> None:
        self._exported.add((step, role))
        self.append([Exported(step, role, path)])
        self.note(RoleExported(step, role, path))
        done()

    # ── closed steps ──────────────────────────────────────────────────────────────────────────────────────────────────
    def begin_archives(self, experiment: Any, crew: Crew) -> None:
        """From now on these agents make the archives of all steps that have none yet."""
        self._janitor.begin(partial(kept_samples, experiment), Turns(crew))

    def heard(self, agent: bytes, told: ChoreReport) -> None:
        """An agent tells of what it does behind the work. Raises what ends the attempt."""
        self._janitor.heard(agent, told)

    def closed(self, lines: StepLines, row: Mapping[str, float], seconds: float) -> None:
        """A step's closing line is written: show its rows; its archive is made, and its spills are merged, behind the
        work."""
        entry = self.note(StepClosed(lines.step, seconds, len(lines.ids)))
        self._rows.closed(entry, row, self._events.size)
        self._janitor.closed(lines)

    def tidy(self) -> None:
        """Journal what is done behind the work. Raises what was raised there."""
        self._janitor.tidy()

    @property
    def idle(self) -> bool:
        return self._janitor.idle and self._verification.idle

    def close(self) -> None:
        """Nobody is to join this attempt any more."""
        self._janitor.close()
        self._writer.shutdown()
        self._journal.close()
        self._rows.close()
        self._events.close()
        self._run.close(self.number)

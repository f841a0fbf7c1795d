"""What every driver of an attempt does: advance, write the journal, close steps, save, and end.

`GraphDriver` and `ScriptDriver` are the two: they alone know where units of work come from. Knows no sockets: a driver
is told through `hear` what workers reported, and `advance` does whatever has become possible. A call counts when its
journal line is written, which is after its spill is published and after the lines of all that it consumed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from hpcrl.dataflow.graph import MFC
from hpcrl.dataflow.readiness import Readiness
from hpcrl.dataflow.tasks import Task, Unit, Version
from hpcrl.durable.journal import Closed, Event, Ids, Opened
from hpcrl.durable.once import Turn
from hpcrl.durable.recovery import UnitKey
from hpcrl.durable.step_lines import StepLines
from hpcrl.events import StepOpened, StopNeverHolds
from hpcrl.master.attempt_records import Appended, Appending, AttemptRecords
from hpcrl.master.dispatcher import Dispatcher
from hpcrl.master.drift_check import DriftCheck
from hpcrl.master.drop_limits import DropLimits
from hpcrl.master.jobs import Inputs, Job, Movers
from hpcrl.master.numerics import Computing, numerics
from hpcrl.master.open_steps import OpenSteps
from hpcrl.master.pace import Pace
from hpcrl.master.saving import Saving
from hpcrl.master.shown import to_show
from hpcrl.master.step_metrics import StepMetrics
from hpcrl.master.stepping import StepSource
from hpcrl.master.surroundings import Surroundings
from hpcrl.placement.exporting import export_of
from hpcrl.placement.layouts import Ranks
from hpcrl.placement.plan import ModelName, Plan
from hpcrl.progress import ShardSaved
from hpcrl.wire.holders import FROM_DATA, InDataset
from hpcrl.wire.messages import (
    Assemble,
    ExportWritten,
    Moved,
    Reply,
    Report,
    Save,
    ShardsVerified,
    ShardWritten,
    Spilled,
    Syn,
)
from hpcrl.wire.script_messages import FromScript

REPLAYS_WORTH_A_CHECKPOINT = 3
OF_CALLS = Reply, Syn, Spilled, Moved


@dataclass(frozen=True)
class _Writing:
    """Lines on their way to the disk, and the row of each step that is closed by them."""

    lines: list[Event]
    closed: dict[int, dict[str, int | float]]
    behind: Appending


class Driver(ABC):
    """From what was recovered to the end of the run. `window` steps are open at a time."""

    writes_behind = False
    """Whether it hears and sends while lines are written; moves, and what else follows a line, wait."""

    def __init__(
        self,
        attempt: AttemptRecords,
        plan: Plan,
        source: StepSource,
        around: Surroundings,
        computing: Computing,
        window: int,
        may_change: Callable[[Task], bool] | None = None,
    ) -> None:
        self.opens_steps = True
        """Where it may not, the attempt rests once the open steps are closed and the last one is saved. Without a `lag`
        steps may open again; with one, changes no longer wait for what later steps would read."""
        self.pace = Pace(around.clock)
        self._attempt = attempt
        self._plan = plan
        self._source = source
        self._around = around
        self._readiness = Readiness(window, may_change)
        metrics = StepMetrics(DropLimits(source.drop_limits, plan.units), plan.in_rounds)
        self._drift = DriftCheck(attempt.checkpoint_digests(), source.deterministic, around.note)
        self.dispatcher = Dispatcher(
            self._readiness, self._drift, partial(numerics, plan, computing), metrics, self.pace, around, self._movers
        )
        self._saving = Saving(plan.changed)
        self._steps = OpenSteps()
        self._no_more_steps = self._last_is_saved = False
        self._writing: _Writing | None = None

    # ── what a kind of driver does ────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def _go_on(self) -> None:
        """Open steps, and make known what is to be done in them, as far as that is known; calls may be sent."""

    @property
    @abstractmethod
    def lag(self) -> int:
        """By how many changes a call may read older parameters."""

    def _decide(self) -> bool:
        """Whether lines that were just written have led to new units."""
        return False

    @abstractmethod
    def _lines(self) -> list[Event]:
        """Every line of finished work that may be written now, in order."""

    @abstractmethod
    def _written(self, lines: Sequence[Event]) -> None:
        """These lines are."""

    @abstractmethod
    def _supports_cut(self, step: int) -> bool:
        """Whether nobody who is still to read reads older parameters than a step's last."""

    def _earlier(self, step: int) -> tuple[Turn, ...]:
        """How turns of a script before this step ended that its checkpoint keeps."""
        return ()

    @abstractmethod
    def _changed(self, unit: Unit, role: str) -> None:
        """A role has changed by this unit."""

    # ── what the master asks ──────────────────────────────────────────────────────────────────────────────────────────
    def advance(self) -> None:
        """Open and send what is ready, write what is recordable, finish what is whole."""
        self._last_is_saved &= self._ends
        self._send()
        self._begin_writing()
        if self.is_writing:
            return
        if self._end_writing() and self.dispatcher.sends:
            self.dispatcher.send_ready()  # moves, which follow a line
        if self.dispatcher.sends and self._decide():
            self._send()
        self._attempt.tidy()
        for step, roles in self._saving.whole(self._supports_cut):
            digests = self._drift.after(step)
            in_order = {role: digests[role] for role in roles if role in digests}
            self._attempt.checkpointed(self._steps[step], roles, in_order, self._earlier(step))
            self._verify()
        if self._ends and self._all_closed and not self.dispatcher.draining:
            self._save_last()
        if self.writes_behind:
            self._begin_writing()

    @property
    def is_writing(self) -> bool:
        """Whether lines are on their way to the disk: then it is to be advanced again soon."""
        return self._writing is not None and not self._writing.behind.is_done

    @property
    def _ends(self) -> bool:
        """Whether no step opens any more."""
        return self._no_more_steps or not self.opens_steps

    def _send(self) -> None:
        if self.dispatcher.sends:
            self._go_on()
            self.dispatcher.send_ready(moves=self._writing is None)

    @property
    def _all_closed(self) -> bool:
        ready = self._readiness
        return ready.all_finished and not ready.closable() and not ready.more_follow

    @property
    def why_finished(self) -> str:
        return f"step {self._last} was the last"

    @property
    def finished(self) -> bool:
        return self._no_more_steps and self.is_closed_up

    @property
    def is_closed_up(self) -> bool:
        """Whether every open step is closed, and the last one is saved."""
        return self._last_is_saved and self._saving.idle and self._attempt.idle

    @property
    def out_of_time(self) -> str:
        """The calls that wait for an allocation in which they fit, once nothing else is going on."""
        return self.pace.held_back if self.dispatcher.idle else ""

    def hear(self, body: Report | FromScript) -> None:
        """A worker of this attempt reported."""
        if isinstance(body, OF_CALLS):
            executed = self.dispatcher.hear(body)
            if executed is not None:
                self._executed(executed)
        elif isinstance(body, ShardWritten):
            self._around.follow(ShardSaved(body.step, body.role, body.rank, body.seconds))
            if self._saving.shard(body):
                self._order(body.role, Assemble(body.step, body.role))
        elif isinstance(body, ShardsVerified):
            self._attempt.verified(body)
            self._verify()
        elif isinstance(body, ExportWritten):
            if self._saving.assembled(body):
                done = partial(self._saving.exported, body.step, body.role)
                self._attempt.export(body.step, body.role, export_of(self._source.experiment, body.role), done)
        else:
            self._hear_script(body)

    def _hear_script(self, body: FromScript) -> None:
        raise ValueError(f"{type(body).__name__} came from a worker, but the run has no script")

    def _executed(self, task: Task) -> None:
        """A unit is, on all of its workers."""
        if task.changes:
            self._changed(task.unit, task.changes)

    # ── recovery ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _expect_replays(self) -> None:
        """Know what is executed again, and have it saved where it is much."""
        recovery = self._attempt.recovery
        self._drift.expect(recovery.replay, {step for step, _, _ in recovery.lost}, recovery.numerics)
        if len(recovery.replay) > REPLAYS_WORTH_A_CHECKPOINT:
            self._saving.expect_checkpoint(max(line.step for line in recovery.replay))

    def _export_loaded(self) -> None:
        """What is to be exported of the step that the attempt begins with is, as it was loaded."""
        recovery = self._attempt.recovery
        if recovery.checkpoint is not None and (cut := recovery.checkpoint.step) in recovery.exports.steps:
            for role in (home.role for home in self._plan.trained if not self._attempt.has_export(cut, home.role)):
                self._order_save(cut, role, checkpoint=False, export=True)

    def _measure(self, unit: UnitKey) -> None:
        """Read how long the rows are that an older attempt has made, by which train steps that read them are cut."""
        spill = self._attempt.recovery.recorded[unit].spill
        self.dispatcher.rows.measured(unit.step, unit.call, self._attempt.meta_of(spill))

    # ── steps and units ───────────────────────────────────────────────────────────────────────────────────────────────
    def _append_opened(self, opened: Opened) -> StepLines:
        """The next step is opened in the journal."""
        if self.pace.is_last_in_time():
            opened = replace(opened, checkpoint=True)
        self._attempt.append([opened])
        self._around.note(StepOpened(opened.step, opened.epoch, samples=len(opened.ids)))
        return StepLines(opened)

    def _enter(self, lines: StepLines) -> None:
        """Make a step known, with the rows of the data, before its units are."""
        step, rows = lines.step, self.dispatcher.rows
        self._steps.enter(lines)
        self.dispatcher.metrics.opened(step)
        self.pace.opened(step)
        rows.put(step, FROM_DATA, self._plan.dataset_keys, lines.ids, InDataset("train"))
        rows.put(step, FROM_DATA, self._plan.eval_keys, lines.opened.eval_ids, InDataset("eval"))
        if lines.opened.checkpoint:
            self._saving.expect_checkpoint(step)

    def _job(self, lines: StepLines, task: Task, mfc: MFC, ids: Ids, inputs: Inputs, arguments: str = "") -> Job:
        """Who works on a unit, on which samples. A train_step is shared out among the parts there are now."""
        unit = task.unit
        working = self._plan.working(unit.call, unit.part)
        ranks = self._plan.ranks(unit.call, unit.part)
        again, parts_in_step = self._attempt.recovery.settings_of, self._plan.in_step(unit.call)
        settings = again.get(UnitKey(unit.step, unit.call, unit.part), self._plan.settings)
        shown = to_show(lines, mfc, unit.call, self._source.experiment, self._attempt.recovery, self._attempt.meta_of)
        in_step, shows = bool(parts_in_step), bool(shown.ids) and shown.had is None
        return Job(
            task if (in_step, shows) == (task.in_step, task.shows) else replace(task, in_step=in_step, shows=shows),
            inputs=inputs,
            outputs=mfc.outputs,
            ranks=ranks,
            helpers=_others(self._plan.home(mfc.blends).ranks, ranks) if mfc.blends else (),
            heads=tuple(part.head for part in working),
            ids=ids,
            share_out=self._shares(lines, unit.call, mfc, len(working)) if task.changes else None,
            minibatches=self._source.minibatches(lines, unit.call, settings) if mfc.kind == "train_step" else (),
            settings=settings,
            in_step=parts_in_step,
            shown=shown,
            arguments=arguments,
        )

    def _movers(self, version: Version) -> Movers:
        replica = self._plan.placed(ModelName(version.role, version.replica))
        helpers = _others(self._plan.home(version.role).ranks, replica.ranks)
        return Movers(replica.ranks, helpers, drops=replica.between == "drop")

    def _shares(self, lines: StepLines, call: str, mfc: MFC, parts: int) -> Callable[[Sequence[int]], Sequence[Ids]]:
        """How a change of a role is shared out, given how long its samples are. A blend has none."""
        return (lambda _: [()] * parts) if mfc.blends else partial(self._source.shares, lines, call, parts=parts)

    # ── the journal ───────────────────────────────────────────────────────────────────────────────────────────────────
    def _begin_writing(self) -> None:
        """Append every line that may be written now, unless others are under way; one fsync for all."""
        if self._writing is not None:
            return
        lines: list[Event] = self._lines()
        closed = self._readiness.closable()
        rows = [self.dispatcher.metrics.row(self._steps[step]) for step in closed]
        turns = (self._steps[step].turn for step in closed)
        lines.extend(Closed(step, row, turn) for step, row, turn in zip(closed, rows, turns, strict=True))
        if lines:
            self._writing = _Writing(lines, dict(zip(closed, rows, strict=True)), self._append(lines))

    def _append(self, lines: Sequence[Event]) -> Appending:
        if self.writes_behind:
            return self._attempt.append_behind(lines)
        self._attempt.append(lines)
        return Appended()

    def _end_writing(self) -> bool:
        """What follows once the lines that were begun are on disk. Whether there were any."""
        writing = self._writing
        if writing is None:
            return False
        writing.behind.finish()
        self._writing = None
        self.dispatcher.metrics.refuse_dropped(writing.lines)
        self._written(writing.lines)
        for step, row in writing.closed.items():
            self._close(step, row)
        return True

    def _close(self, step: int, row: Mapping[str, int | float]) -> None:
        self._readiness.closed(step)
        self._saving.closed(step)
        self._attempt.closed(self._steps[step], row, seconds=self.pace.closed(step))
        reported = self.dispatcher.metrics.reported(step)
        if not self._steps[step].is_empty and (lacking := self._source.schedule.lacks(reported)):
            self._around.note(StopNeverHolds(step, lacking, reported=sorted(row)))
        if self._source.schedule.stops_after(row):
            self._no_more_steps = True
        oldest = min((open_step for open_step in self._steps.numbers if open_step > step), default=step + 1)
        self.dispatcher.forget(oldest - bool(self._plan.in_rounds))  # what is carried is read in the next step
        self._forget(step)

    def _forget(self, before: int) -> None:
        """Drop what is known of closed steps, unless a checkpoint of theirs is still under way."""
        over = [step for step in self._steps.numbers if step < before and not self._saving.expects(step)]
        for part in (self._steps, self.dispatcher.metrics, self._drift, self.pace):
            part.forget(over)

    # ── saving and the end ────────────────────────────────────────────────────────────────────────────────────────────
    def _verify(self) -> None:
        """Have what is kept read back that nobody has read yet: what is older goes then."""
        self._attempt.verify({home.role: home.ranks for home in self._plan.changed}, self._around.send)

    def _save_after(self, step: int, role: str) -> None:
        """Have a role saved as it is right after this step, before its next train_step can be sent."""
        checkpoint = self._saving.expects(step) and not self._attempt.has_checkpoint(step)
        exports = self._steps[step].opened.export and self._plan.home(role).trainable
        export = exports and not self._attempt.has_export(step, role)
        if checkpoint or export:
            self._order_save(step, role, checkpoint, export)

    def _order_save(self, step: int, role: str, checkpoint: bool, export: bool) -> None:
        if export:
            self._saving.expect_export(step, role)
        self._order(role, Save(step, role, checkpoint, export))

    def _order(self, role: str, order: Save | Assemble) -> None:
        for rank in self._plan.home(role).ranks:
            self._around.send(rank, order)

    def _save_last(self) -> None:
        """Once, unless steps open again: save the last state of all roles that change, if it is not there. A run that
        is done exports those that are trained."""
        if self._last_is_saved:
            return
        self._last_is_saved = True
        last = self._last
        checkpoint = last > 0 and not self._attempt.has_checkpoint(last) and not self._saving.expects(last)
        if checkpoint:
            self._saving.expect_checkpoint(last)
            self._saving.closed(last)
        for home in self._plan.changed:
            role = home.role
            exists = self._attempt.has_export(last, role) or self._saving.exports(last, role)
            export = home.trainable and self._no_more_steps and last > 0 and not exists
            if checkpoint or export:
                self._order_save(last, role, checkpoint, export)

    @property
    def _last(self) -> int:
        return self._steps.last.step if self._steps.last is not None else 0


def _others(ranks: Ranks, but: Iterable[int]) -> Ranks:
    return tuple(rank for rank in ranks if rank not in but)

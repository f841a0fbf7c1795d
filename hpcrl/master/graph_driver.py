"""Drives one attempt of the graph: opens steps, tells the dispatcher their units, writes the journal, closes steps.

Alone knows the graph and the steps. Knows no sockets: it is told through `hear` what workers reported, and `advance`
does whatever has become possible. A call counts when its journal line is written, which is after its spill is published
and after the lines of all that it consumed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from hpcrl.dataflow.graph import MFC, producers
from hpcrl.dataflow.readiness import Readiness
from hpcrl.dataflow.tasks import Task, Unit, Version
from hpcrl.dataflow.units import furthest_behind, units_of, window
from hpcrl.durable.journal import Closed, Done, Event, Extended, Ids
from hpcrl.durable.recovery import UnitKey
from hpcrl.durable.step_lines import StepLines
from hpcrl.events import StepChosen, StepExtended, StepOpened, StopNeverHolds
from hpcrl.master.attempt_records import AttemptRecords
from hpcrl.master.dispatcher import Dispatcher
from hpcrl.master.drift_check import DriftCheck
from hpcrl.master.drop_limits import DropLimits
from hpcrl.master.jobs import Job, Movers
from hpcrl.master.numerics import Computing, numerics
from hpcrl.master.open_steps import OpenSteps
from hpcrl.master.pace import Pace
from hpcrl.master.row_table import Key
from hpcrl.master.saving import Saving
from hpcrl.master.shown import to_show
from hpcrl.master.step_metrics import StepMetrics
from hpcrl.master.stepping import StepSource
from hpcrl.master.surroundings import Surroundings
from hpcrl.placement.exporting import export_of
from hpcrl.placement.layouts import Ranks
from hpcrl.placement.plan import ModelName, Plan
from hpcrl.progress import ShardSaved
from hpcrl.wire.holders import FROM_DATA, InDataset, InSpill
from hpcrl.wire.messages import (
    Assemble,
    ExportWritten,
    Report,
    Save,
    ShardsVerified,
    ShardWritten,
)

REPLAYS_WORTH_A_CHECKPOINT = 3


class GraphDriver:
    """From what was recovered to the end of the run."""

    def __init__(
        self,
        attempt: AttemptRecords,
        plan: Plan,
        source: StepSource,
        around: Surroundings,
        computing: Computing,
    ) -> None:
        self.opens_steps = True
        """Where it may not, the attempt rests once the open steps are closed and the last one is saved."""
        self.pace = Pace(around.clock)
        self._attempt = attempt
        self._plan = plan
        self._graph = plan.graph()
        self._behind = furthest_behind(self._graph)
        self._source = source
        self._around = around
        self._readiness = Readiness(window(self._graph))
        metrics = StepMetrics(DropLimits(source.drop_limits, plan.units))
        self._drift = DriftCheck(attempt.checkpoint_digests(), source.deterministic, around.note)
        self.dispatcher = Dispatcher(
            self._readiness, self._drift, partial(numerics, plan, computing), metrics, self.pace, around, self._movers
        )
        self._saving = Saving(plan.changed)
        self._steps = OpenSteps()
        self._no_more_steps = self._last_is_saved = False
        self._restore()

    # ── what the master asks ──────────────────────────────────────────────────────────────────────────────────────────
    def advance(self) -> None:
        """Open and send what is ready, write what is recordable, finish what is whole."""
        self._send()
        if self._write_lines() and self.dispatcher.sends:
            self.dispatcher.send_ready()  # moves, which follow a line
        if self.dispatcher.sends and self._choose():
            self._send()
        self._attempt.tidy()
        for step, roles in self._saving.whole(self._readiness.supports_cut):
            digests = self._drift.after(step)
            in_order = {role: digests[role] for role in roles if role in digests}
            self._attempt.checkpointed(self._steps[step], roles, in_order)
            self._verify()
        if self._ends and self._all_closed and not self.dispatcher.draining:
            self._save_last()

    @property
    def _ends(self) -> bool:
        """Whether no step opens any more."""
        return self._no_more_steps or not self.opens_steps

    def _send(self) -> None:
        if self.dispatcher.sends:
            self._open_steps()
            if self._ends or (self._source.schedule.waits_for_metrics and not self._behind):
                self._readiness.end()
            self.dispatcher.send_ready()

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

    def hear(self, body: Report) -> None:
        """A worker of this attempt reported."""
        if isinstance(body, ShardWritten):
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
            executed = self.dispatcher.hear(body)
            if executed is not None and executed.changes:
                self._save_after(executed.unit.step, executed.changes)

    # ── recovery ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _restore(self) -> None:
        """Take over what older attempts finished: read it from spills, replay train steps after the checkpoint."""
        recovery = self._attempt.recovery
        self._steps.last = recovery.last_opened
        for lines in recovery.opened:
            self._enter(lines)
        recorded = {}
        for key, (done, spill) in recovery.recorded.items():
            unit = Unit(*key)
            recorded[unit] = InSpill(spill.path, spill.group)
            self.dispatcher.metrics.put(unit, dict(done.stats), done.settings)
            self._take_scores(done)
        replay = {Unit(line.step, line.call, 0): line for line in recovery.replay}
        for unit, line in replay.items():
            self.dispatcher.metrics.put(unit, dict(line.stats), line.settings)
        self.dispatcher.metrics.refuse_dropped(done for done, _ in recovery.recorded.values())
        self._drift.expect(recovery.replay, {step for step, _, _ in recovery.lost}, recovery.numerics)
        self.dispatcher.restore(recorded, list(replay))
        self._measure(recorded)
        if len(replay) > REPLAYS_WORTH_A_CHECKPOINT:
            self._saving.expect_checkpoint(max(unit.step for unit in replay))
        for step in sorted(recovery.closed):
            self._readiness.was_closed(step)
            self._saving.closed(step)
        self._source.look_ahead(self._steps.last)
        if recovery.checkpoint is not None and (cut := recovery.checkpoint.step) in recovery.exports:
            for role in (home.role for home in self._plan.trained if not self._attempt.has_export(cut, home.role)):
                self._order_save(cut, role, checkpoint=False, export=True)  # as it was loaded
        if self._source.schedule.has_stopped([row.metrics for row in recovery.metrics], self._behind):
            self._no_more_steps = True

    def _measure(self, recorded: Mapping[Unit, InSpill]) -> None:
        """Read how long the rows are that train steps are going to be given, by which they are shared out."""
        read = {maker for call in self._plan.changes for maker in producers(self._graph, call)}
        for unit in recorded:
            if unit.call in read:
                spill = self._attempt.recovery.recorded[UnitKey(unit.step, unit.call, unit.part)].spill
                self.dispatcher.rows.measured(unit.step, unit.call, self._attempt.meta_of(spill))

    # ── opening steps ─────────────────────────────────────────────────────────────────────────────────────────────────
    def _open_steps(self) -> None:
        while not self._no_more_steps and (step := self._next_step()) is not None and self._source.is_ready():
            if not self._source.exists(step, self._steps.last):
                self._no_more_steps = True
            if self._no_more_steps or not self.opens_steps:
                return
            opened = self._source.open(step, self._steps.last)
            if self.pace.is_last_in_time():
                opened = msgspec.structs.replace(opened, checkpoint=True)
            self._attempt.append([opened])
            lines = StepLines(opened)
            self._enter(lines)
            self._source.look_ahead(lines)
            self._around.note(StepOpened(step, opened.epoch, samples=len(opened.ids)))

    def _next_step(self) -> int | None:
        """The number of the step that may open now."""
        last = self._steps.last
        step = self._source.schedule.first_step if last is None else last.step + 1
        if not self._readiness.can_open(step):
            return None
        if self._source.schedule.waits_for_metrics and self._readiness.unclosed > self._behind:
            return None
        return step

    def _enter(self, lines: StepLines) -> None:
        """Make a step known, with the units of all lines that there are of it."""
        step, rows = lines.step, self.dispatcher.rows
        self._steps.enter(lines)
        self.dispatcher.metrics.opened(step)
        self.pace.opened(step)
        self.dispatcher.open(step, self._new_jobs(lines), more=not lines.is_whole)
        rows.put(step, FROM_DATA, self._plan.dataset_keys, lines.ids, InDataset("train"))
        rows.put(step, FROM_DATA, self._plan.eval_keys, lines.opened.eval_ids, InDataset("eval"))
        if lines.opened.checkpoint:
            self._saving.expect_checkpoint(step)

    def _choose(self) -> bool:
        """Draw more rows for the step that has yet to choose, or choose, once all that it has drawn is scored.

        Whether it did.
        """
        scores, last = self._steps.scores, self._steps.last
        if scores is None or last is None or not self._source.is_ready():
            return False
        line = self._source.choose(last, scores)
        self._around.fault("master.choose")
        self._attempt.append([line])
        lines = self._steps.follow(line)
        self.dispatcher.extend(lines.step, self._new_jobs(lines), more=not lines.is_whole)
        if isinstance(line, Extended):
            self.dispatcher.rows.put(line.step, FROM_DATA, self._plan.dataset_keys, line.ids, InDataset("train"))
            self._around.note(StepExtended(line.step, line.round, samples=len(line.ids)))
        else:
            self._around.note(StepChosen(line.step, samples=len(line.ids), dropped=len(line.dropped)))
        self._source.look_ahead(lines)
        return True

    def _take_scores(self, done: Done) -> None:
        """Note what a part of the deciding call says, of the newest step."""
        last = self._steps.last
        if done.scores and last is not None and done.step == last.step:
            self._steps.scored(self._source.parts(last, done.call)[done.part], done.scores)

    def _new_jobs(self, lines: StepLines) -> list[Job]:
        """Those of a step's units that were not told yet."""
        parts = {call: self._source.parts(lines, call) for call in lines.calls}
        replicas = {call: model.replica for call, model in self._plan.at.items()}
        told = self.dispatcher.told(lines.step)
        cut = self._attempt.recovery.checkpoint
        oldest = 0 if cut is None else cut.step  # nobody is behind where the attempt began
        tasks = units_of(self._graph, lines.step, parts, parts, told, replicas, oldest)
        return [self._job(lines, task, parts[task.unit.call]) for task in tasks]

    def _job(self, lines: StepLines, task: Task, parts: Sequence[Ids]) -> Job:
        """Who works on a unit, on which samples and rows. A train_step is shared out among the parts there are now."""
        unit, call = task.unit, self._plan.call(task.unit.call)
        makers = {key: maker for maker, keys in producers(self._graph, unit.call).items() for key in keys}
        working = self._plan.working(unit.call, unit.part)
        ranks = self._plan.ranks(unit.call, unit.part)
        again, in_step = self._attempt.recovery.settings_of, self._plan.in_step(unit.call)
        settings = again.get(UnitKey(unit.step, unit.call, unit.part), self._plan.settings)
        shown = to_show(lines, call, self._source.experiment, self._attempt.recovery, self._attempt.meta_of)
        return Job(
            replace(task, in_step=bool(in_step), shows=bool(shown.ids) and shown.had is None),
            inputs=tuple(Key(makers.get(key, FROM_DATA), key) for key in call.inputs),
            outputs=call.outputs,
            ranks=ranks,
            helpers=_others(self._plan.home(call.blends).ranks, ranks) if call.blends else (),
            heads=tuple(part.head for part in working),
            ids=parts[unit.part],
            share_out=self._shares(lines, call, len(working)) if task.changes else None,
            minibatches=self._source.minibatches(lines, settings) if call.kind == "train_step" else (),
            settings=settings,
            in_step=in_step,
            shown=shown,
        )

    def _movers(self, version: Version) -> Movers:
        replica = self._plan.placed(ModelName(version.role, version.replica))
        helpers = _others(self._plan.home(version.role).ranks, replica.ranks)
        return Movers(replica.ranks, helpers, drops=replica.between == "drop")

    def _shares(self, lines: StepLines, call: MFC, parts: int) -> Callable[[Sequence[int]], Sequence[Ids]]:
        """How a change of a role is shared out, given how long its samples are. A blend has none."""
        return (lambda _: [()] * parts) if call.blends else partial(self._source.shares, lines, parts=parts)

    # ── the journal ───────────────────────────────────────────────────────────────────────────────────────────────────
    def _write_lines(self) -> bool:
        """Append every line that may be written now; one fsync for all. Whether there were any."""
        lines: list[Event] = list(self.dispatcher.lines())
        closed = self._readiness.closable()
        rows = [self.dispatcher.metrics.row(self._steps[step]) for step in closed]
        lines.extend(Closed(step, row) for step, row in zip(closed, rows, strict=True))
        if not lines:
            return False
        self._attempt.append(lines)
        self.dispatcher.metrics.refuse_dropped(lines)
        for line in lines:
            if isinstance(line, Done):
                self._take_scores(line)
        for step, row in zip(closed, rows, strict=True):
            self._close(step, row)
        return True

    def _close(self, step: int, row: dict[str, int | float]) -> None:
        self._readiness.closed(step)
        self._saving.closed(step)
        self._attempt.closed(self._steps[step], row, seconds=self.pace.closed(step))
        reported = self.dispatcher.metrics.reported(step)
        if not self._steps[step].is_empty and (lacking := self._source.schedule.lacks(reported)):
            self._around.note(StopNeverHolds(step, lacking, reported=sorted(row)))
        if self._source.schedule.stops_after(row):
            self._no_more_steps = True
        oldest = min((open_step for open_step in self._steps.numbers if open_step > step), default=step + 1)
        self.dispatcher.forget(oldest)
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
        """Once: save the last state of all roles that change, unless it is there. A run that is done exports those that
        are trained."""
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


def _others(ranks: Ranks, but: Ranks) -> Ranks:
    return tuple(rank for rank in ranks if rank not in but)

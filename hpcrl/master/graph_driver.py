"""Drives one attempt of the graph: each step makes every call once, as the graph says, on the rows that it chooses.

Alone knows the graph. What all drivers do is in `driver`.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

from hpcrl.dataflow.graph import producers
from hpcrl.dataflow.tasks import Task, Unit
from hpcrl.dataflow.units import Parts, furthest_behind, units_in_rounds, units_of, window
from hpcrl.durable.journal import Carried, Done, Event, Extended, Ids
from hpcrl.durable.recovery import UnitKey
from hpcrl.durable.step_lines import StepLines
from hpcrl.events import StepChosen, StepExtended
from hpcrl.master.attempt_records import AttemptRecords
from hpcrl.master.driver import Driver
from hpcrl.master.jobs import Inputs, Job
from hpcrl.master.numerics import Computing
from hpcrl.master.row_table import Key
from hpcrl.master.stepping import StepSource
from hpcrl.master.surroundings import Surroundings
from hpcrl.placement.plan import Plan
from hpcrl.wire.holders import FROM_DATA, InDataset, InSpill


class GraphDriver(Driver):
    """From what was recovered to the end of the run."""

    def __init__(
        self,
        attempt: AttemptRecords,
        plan: Plan,
        source: StepSource,
        around: Surroundings,
        computing: Computing,
    ) -> None:
        self._graph = plan.graph()
        self._behind = furthest_behind(self._graph)
        self._carried: Mapping[str, Carried] = {}
        """The samples that the newest step has from the one before, and who has made them."""
        super().__init__(attempt, plan, source, around, computing, window(self._graph))
        self._restore()

    def _go_on(self) -> None:
        self._open_steps()
        if self._ends or (self._source.schedule.waits_for_metrics and not self._behind):
            self._readiness.end()

    @property
    def lag(self) -> int:
        return self._behind

    def _supports_cut(self, step: int) -> bool:
        return self._readiness.supports_cut(step)

    def _changed(self, unit: Unit, role: str) -> None:
        self._save_after(unit.step, role)

    # ── recovery ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _restore(self) -> None:
        """Take over what older attempts finished: read it from spills, replay train steps after the checkpoint."""
        recovery = self._attempt.recovery
        if (before := recovery.before) is not None:
            self._steps.last = before.lines
            for (step, call, part), (_, spill) in before.carried.items():
                outputs, ids = self._plan.call(call).outputs, self._source.parts(before.lines, call)[part]
                self.dispatcher.rows.put(step, call, outputs, ids, InSpill(spill.path, spill.group))
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
        self._expect_replays()
        self.dispatcher.restore(recorded, list(replay))
        self._measure_read(recorded)
        for step in sorted(recovery.closed):
            self._readiness.was_closed(step)
            self._saving.closed(step)
        self._source.look_ahead(self._steps.last)
        self._export_loaded()
        if self._source.schedule.has_stopped([row.metrics for row in recovery.metrics], self._behind):
            self._no_more_steps = True

    def _measure_read(self, recorded: Mapping[Unit, InSpill]) -> None:
        """Read how long the rows are that train steps are going to be given, by which they are shared out."""
        read = {maker for call in self._plan.changes for maker in producers(self._graph, call)}
        for unit in recorded:
            if self._plan.call(unit.call).name in read:
                self._measure(UnitKey(unit.step, unit.call, unit.part))

    # ── opening steps ─────────────────────────────────────────────────────────────────────────────────────────────────
    def _open_steps(self) -> None:
        while not self._no_more_steps and (step := self._next_step()) is not None and self._source.is_ready():
            if not self._source.exists(step, self._steps.last):
                self._no_more_steps = True
            if self._no_more_steps or not self.opens_steps:
                return
            lines = self._append_opened(self._source.open(step, self._steps.last))
            self._enter(lines)
            self._source.look_ahead(lines)

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
        """With the units of all lines that there are of it."""
        before = self._steps.last
        self._carried = {} if before is None else {each: of for of in before.carried for each in of.ids}
        super()._enter(lines)
        self.dispatcher.open(lines.step, self._new_jobs(lines), more=not lines.is_whole)

    def _decide(self) -> bool:
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
            ids, again = self._source.parts(last, done.call)[done.part], last.going_after(done.call)
            scores = zip(ids, done.scores, strict=True)
            self._steps.scored({sample: score for sample, score in scores if sample not in again})

    def _new_jobs(self, lines: StepLines) -> list[Job]:
        """Those of a step's units that were not told yet."""
        parts = {call: self._source.parts(lines, call) for call in lines.calls}
        replicas = {call: model.replica for call, model in self._plan.at.items()}
        cut = self._attempt.recovery.checkpoint
        oldest = 0 if cut is None else cut.step  # nobody is behind where the attempt began
        tasks = self._tasks(lines, parts, self.dispatcher.told(lines.step), replicas, oldest)
        reads = {call: self._reads(lines, call) for call in parts}
        jobs = []
        for task in tasks:
            call, ids = task.unit.call, tuple(parts[task.unit.call][task.unit.part])
            jobs.append(self._job(lines, task, self._plan.call(call), ids, reads[call](ids)))
        return jobs

    def _tasks(
        self, lines: StepLines, parts: Parts, told: Collection[Unit], replicas: Mapping[str, int], oldest: int
    ) -> list[Task]:
        call = self._plan.in_rounds
        if not call or not lines.opened.chooses:
            return units_of(self._graph, lines.step, parts, parts, told, replicas, oldest)
        carried = {sample: self._carried[sample] for sample in lines.opened.begun}
        units = {sample: Unit(lines.step - 1, made.call, made.part) for sample, made in carried.items()}
        before = {sample: unit for sample, unit in units.items() if self._readiness.knows(unit)}
        rounds = {name: parts[name] for name in lines.in_rounds(call)}
        tasks, made = units_in_rounds(self._graph, lines.step, call, rounds, told, before, replicas, oldest)
        others = parts.keys() - rounds.keys()
        return [*tasks, *units_of(self._graph, lines.step, others, parts, told, replicas, oldest, {call: made})]

    def _reads(self, lines: StepLines, call: str) -> Callable[[Ids], Inputs]:
        """What a part of a call with these samples reads: keys, with their makers. A call that is made in rounds reads
        all that there is of samples that go on, and whoever reads what it makes, of each sample what was made last."""
        mfc, flying = self._plan.call(call), self._plan.in_rounds
        makers = {key: maker for maker, keys in producers(self._graph, mfc.name).items() for key in keys}
        keys = tuple(Key(makers.get(key, FROM_DATA), key) for key in mfc.inputs)
        if not flying or not (mfc.in_rounds or flying in makers.values()):
            return lambda ids: [(keys, ids)]
        others = tuple(key for key in keys if key.call != flying)
        names = mfc.outputs if mfc.in_rounds else tuple(key.key for key in keys if key.call == flying)
        made = self._made_last(lines, before=call)
        own = {at: tuple(at._replace(key=name) for name in names) for at in set(made.values())}
        return lambda ids: [
            ((*others, *(() if at is None else own[at])), tuple(samples)) for at, samples in _alike(ids, made).items()
        ]

    def _made_last(self, lines: StepLines, before: str) -> dict[str, Key]:
        """Who has made samples last in this step, or the one before, up to this call if it is a round."""
        made = {sample: Key(self._carried[sample].call, "", back=1) for sample in lines.opened.begun}
        for name, drawn in lines.in_rounds(self._plan.in_rounds).items():
            if name == before:
                break
            made.update(dict.fromkeys(drawn, Key(name, "")))
        return made

    # ── the journal ───────────────────────────────────────────────────────────────────────────────────────────────────
    def _lines(self) -> list[Event]:
        return list(self.dispatcher.lines())

    def _written(self, lines: Sequence[Event]) -> None:
        for line in lines:
            if isinstance(line, Done):
                self._take_scores(line)


def _alike(ids: Ids, made: Mapping[str, Key]) -> Mapping[Key | None, Sequence[str]]:
    """Samples by who has made them."""
    together: dict[Key | None, list[str]] = defaultdict(list)
    for sample in ids:
        together[made.get(sample)].append(sample)
    return together

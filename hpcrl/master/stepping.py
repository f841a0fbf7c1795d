"""Where steps come from: the next samples in the data set's order, cut into minibatches and data-parallel parts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Generic, TypeVar

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.data.batch import Batch
from hpcrl.data.choice import Choice, FirstToEnd
from hpcrl.data.choosing import Choose, Extend, choose, first_to_end, more_in_flight
from hpcrl.data.datasets import RowOrder, open_datasets, open_order
from hpcrl.data.minibatches import minibatches_of_all_passes
from hpcrl.data.order import StepSamples, group_of, row_of, sample_ids
from hpcrl.data.partition import Positions, partition_step, share_out
from hpcrl.data.rows.kind import Dataset, Indexes, MeasuredRows
from hpcrl.dataflow.graph import MFC
from hpcrl.durable.journal import Carried, Chosen, Cuts, Extended, Ids, Opened
from hpcrl.durable.step_lines import StepLines, turn_name
from hpcrl.errors import DataError
from hpcrl.events import RowsLeftOut
from hpcrl.master.schedule import RunSchedule
from hpcrl.placement.plan import Plan
from hpcrl.recipes.algorithm import algorithm_of

D_co = TypeVar("D_co", bound=MeasuredRows, covariant=True)


@dataclass(frozen=True)
class RunData(Generic[D_co]):
    """The data sets of a run, opened once by its master, the order of the training rows, and how a step cuts them.

    Those of a simulation are measured alone.
    """

    datasets: Mapping[str, D_co]
    order: RowOrder
    eval_ids: Ids
    batch: Batch
    choice: Choice | FirstToEnd | None
    left_out: Sequence[RowsLeftOut]
    """Which rows, and why."""

    def steps(self, schedule: RunSchedule) -> int:
        """How many training steps the run has, unless it is stopped before."""
        return schedule.steps(self.order.batches)

    def draw(self, cursor: int) -> StepSamples:
        """The next samples; where steps choose, a batch is whole and may be of two epochs."""
        return self.order.batch_at(cursor) if self.choice is None else self.order.draw(cursor, self.batch.rows)

    def divide(
        self, source: str, ids: Ids, parts: int, trained: bool = True
    ) -> tuple[tuple[Positions, ...], tuple[Positions, ...]]:
        """(minibatches, parts) of samples, by position; those of evaluation data, or not trained on, are one
        minibatch."""
        lengths = self.lengths(source, ids)
        if source == "eval":
            return partition_step(lengths, 1, parts)
        return partition_step(lengths, self.batch.minibatches if trained else 1, parts, self._rows(ids))

    def share_out(self, ids: Ids, minibatches: Cuts, made: Sequence[int], parts: int) -> tuple[Ids, ...]:
        """The samples of each part of a train_step, for which rows of so many tokens were made besides the data's."""
        lengths = [own + longest for own, longest in zip(self.lengths("train", ids), made, strict=True)]
        return take(ids, share_out(lengths, minibatches, parts, self._rows(ids)))

    @cached_property
    def lengths(self) -> Callable[[str, Ids], Sequence[int]]:
        """(source, samples) → the tokens of their rows; whoever cuts a step asks for the same again and again."""
        return lru_cache(maxsize=4)(lambda source, ids: self.datasets[source].lengths(ids))

    def _rows(self, ids: Ids) -> list[str] | None:
        """The row of each sample, where rows are kept whole."""
        return [row_of(sample) for sample in ids] if self.batch.kept_whole == "row" else None


def open_data(experiment: ExperimentConfig, indexes: Indexes) -> RunData[Dataset]:
    """Check the experiment's data sets, and tokenise what lengths decide about. May take minutes. Raises DataError."""
    algorithm = algorithm_of(experiment)
    datasets, batch = open_datasets(experiment, algorithm.rows, indexes), algorithm.batch(experiment)
    order = open_order(experiment, algorithm.rows, batch, datasets["train"])
    eval_ids = sample_ids(datasets["eval"].ids, 0) if "eval" in datasets else ()
    left_out = [
        RowsLeftOut(each.notice, source, len(each.left_out), len(each.left_out) + len(each.ids))
        for source, each in datasets.items()
        if each.notice
    ]
    return RunData(datasets, order, eval_ids, batch, algorithm.choice(experiment), left_out)


@lru_cache(maxsize=8)  # most calls of a step have the same samples, cut alike
def take(ids: Ids, cuts: Cuts) -> tuple[Ids, ...]:
    """The ids at the positions of each cut."""
    return tuple(tuple(map(ids.__getitem__, cut)) for cut in cuts)


class StepSource:
    """Makes the lines of which steps are made: `Opened` of the configuration, the data and the step before; where the
    step chooses, `Extended` and `Chosen` of its lines so far and the recorded scores. Pure functions.

    Cutting samples takes their lengths, and these a tokenizer: `measure` and `look_ahead` have it done elsewhere, so
    that `open` and `parts` take no time.
    """

    def __init__(
        self,
        plan: Plan,
        experiment: ExperimentConfig,
        data: RunData[MeasuredRows],
        schedule: RunSchedule,
        in_background: Callable[[Callable[[], None]], Future[None]],
        earlier: Mapping[int, ExperimentConfig],
        scripted: bool = False,
    ) -> None:
        self.experiment = experiment
        self._earlier = earlier
        self.deterministic = experiment.deterministic
        self.drop_limits = algorithm_of(experiment).drop_limits(experiment)
        self._plan = plan
        self._seed = experiment.seed
        self._data = data
        self._draw = lru_cache(maxsize=1)(data.draw)  # whether a step exists, and what it has, is asked after another
        self.schedule = schedule
        self._in_background = in_background
        self._measuring: Future[None] | None = None
        sizes = self._sizes(plan.calls, "eval") if data.eval_ids else []
        self._scripted = scripted
        self._eval_partitions = {str(dp): data.divide("eval", data.eval_ids, dp)[1] for dp in sizes}

    # ── ahead of time ─────────────────────────────────────────────────────────────────────────────────────────────────
    def measure(self, opened: Iterable[StepLines]) -> None:
        """Tokenise the samples of steps that are open, whose train steps' shares are cut by their lengths."""
        for lines in opened:
            self._data.lengths("train", lines.ids)

    def look_ahead(self, before: StepLines | None) -> None:
        """Have the next samples tokenised in the background, if the run has a step after this one.

        Where this one has yet to choose, they may be its own.
        """
        step = self.schedule.first_step if before is None else before.step + before.is_whole

        def tokenise() -> None:
            batch = self._batch_after(before)
            if self.schedule.exists(step, batch.epoch):
                self._data.lengths("train", batch.ids)

        self._measuring = self._in_background(tokenise)

    def is_ready(self) -> bool:
        """Whether what was looked at ahead can be opened. Raises what the tokenizer raised."""
        if self._measuring is None or not self._measuring.done():
            return False
        self._measuring.result()
        return True

    # ── a step ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def exists(self, step: int, before: StepLines | None) -> bool:
        """Whether the run has this step."""
        return self.schedule.exists(step, self._batch_after(before).epoch)

    def open(self, step: int, before: StepLines | None) -> Opened:
        """The next step, which exists."""
        batch = self._batch_after(before)
        due = self.schedule.due(step, self._epochs_ended(batch, before))
        begun, left = self._carried(step, before)
        ids = (*left, *batch.ids) if due.train else ()
        chooses = due.train and self._data.choice is not None and not self._scripted
        calls = [call for call in self._plan.calls if (due.train if call.dataset == "train" else due.evaluate)]
        calls = [call for call in calls if not self._scripted and (not chooses or call.precedes_choice)]
        minibatches, partitions = self._cut(ids, calls, trained=not chooses)
        return Opened(
            step=step,
            ids=ids,
            epoch=batch.epoch,
            cursor=batch.next_cursor if due.train else self._cursor(before),
            calls={call.name: self._plan.units(call.name) for call in calls},
            partitions=partitions,
            minibatches=() if chooses or self._scripted else minibatches,
            seed=self._seed,
            checkpoint=due.checkpoint or not self._plan.changes,  # where no role changes, a cut costs nothing
            export=due.export,
            eval_ids=self._data.eval_ids if due.evaluate else (),
            eval_partitions=self._eval_partitions if due.evaluate and not self._scripted else {},
            chooses=chooses,
            scripted=self._scripted,
            empty_before=before.opened.empty_before + 1 if before is not None and before.is_empty else 0,
            begun=begun,
        )

    def _carried(self, step: int, before: StepLines | None) -> tuple[dict[str, int], Ids]:
        """The samples that a step has from the one before: those that go on, and all."""
        carried = () if before is None else before.carried
        begun = {sample: each.since for each in carried if self._is_kept(step, each) for sample in each.ids}
        return begun, tuple(sample for each in carried for sample in each.ids)

    def _is_kept(self, step: int, carried: Carried) -> bool:
        """Whether samples that were begun in an older step are not begun anew."""
        choice = self._data.choice
        oldest = 1 if not isinstance(choice, FirstToEnd) or choice.max_age is None else step - choice.max_age
        return carried.since >= max(oldest, 1)

    def choose(self, lines: StepLines, scores: Mapping[str, float]) -> Extended | Chosen:
        """What follows in a step that has yet to choose, by the scores of all that it has drawn.

        Raises DataError where too few groups are left and no more may be drawn.
        """
        choice = self._data.choice
        assert choice is not None, "a step chooses by the rule of its recipe"
        if isinstance(choice, FirstToEnd):
            rounds = lines.in_rounds(self._plan.in_rounds)
            ended = first_to_end(choice, self._data.batch.rows, lines.ids, [*rounds.values()], scores)
            if isinstance(ended, Extend):
                return self._extend(lines, ended.rows, ended.going)
            return self._end_rounds(lines, ended)
        decided = choose(choice, self._data.batch.rows, lines.rounds, scores, lines.opened.empty_before)
        if isinstance(decided, Extend):
            return self._extend(lines, decided.rows)
        if isinstance(decided, Choose):
            return self._end_rounds(lines, decided)
        smaller = "" if choice.on_shortage == "smaller" else f", set {choice.section}.on_shortage to smaller"
        raise DataError(
            f"step {lines.step}: {decided.describe(choice)}.",
            f"Raise {choice.section}.max_rounds{smaller}, or submit a new run with rows that are neither too hard nor "
            "too easy.",
        )

    def cut_call(self, mfc: MFC, ids: Ids, cut: Cuts = ()) -> tuple[int, dict[str, Cuts], Cuts]:
        """How a call that a script asks for is cut: (parts, partitions, minibatches), as in `Called`; its parts are
        those of `cut`, if there is one."""
        if cut:
            return len(cut), {str(len(cut)): cut}, ()
        if mfc.changes:
            return 1, {}, self._data.divide("train", ids, 1)[0] if ids else ()
        parts = self._plan.units(mfc.name)
        return parts, {str(parts): self._data.divide(mfc.dataset, ids, parts)[1]}, ()

    def parts(self, lines: StepLines, call: str) -> Sequence[Ids]:
        """The ids of each part that a call is made in; a train_step is one, whose shares are cut later, a blend one of
        none."""
        mfc = self._plan.call(call)
        if mfc.changes:
            return [() if mfc.blends else lines.trained_by(call)]
        cuttings = lines.cuttings(call, evaluates=mfc.dataset == "eval")
        return [part for ids, cuts, count in cuttings for part in take(ids, cuts[str(count)])]

    def minibatches(self, lines: StepLines, call: str, settings: int) -> tuple[Ids, ...]:
        """The ids of each minibatch of a train_step, under this version of the settings; of all passes, where these
        differ."""
        experiment = self._earlier.get(settings, self.experiment)
        cut = take(lines.trained_by(call), lines.minibatches_of(call))
        batch = algorithm_of(experiment).batch(experiment)
        return minibatches_of_all_passes(batch, cut, experiment.seed, lines.step)

    def shares(self, lines: StepLines, call: str, made: Sequence[int], parts: int) -> tuple[Ids, ...]:
        """The ids of each part of a train_step, balanced minibatch by minibatch.

        `made` are the tokens of each sample's longest row among those that calls have made for the train_step.
        """
        return self._data.share_out(lines.trained_by(call), lines.minibatches_of(call), made, parts)

    def _extend(self, lines: StepLines, rows: int, going: Ids = ()) -> Extended:
        calls = [call for call in self._plan.calls if call.precedes_choice]
        batch, number = self._data.order.draw(lines.cursor, rows), len(lines.rounds)
        _, partitions = self._cut((*going, *batch.ids), calls, trained=False)
        names = {call.name: turn_name(call.name, number) if call.in_rounds else call.name for call in calls}
        return Extended(
            step=lines.step,
            round=number,
            ids=batch.ids,
            cursor=batch.next_cursor,
            calls={own: self._plan.units(name) for name, own in names.items()},
            partitions=partitions,
            going=going,
        )

    def _end_rounds(self, lines: StepLines, decided: Choose) -> Chosen:
        late = [call for call in self._plan.calls if not call.precedes_choice]
        calls = [
            call for call in late if (lines.opened.eval_ids if call.dataset == "eval" else decided.ids or call.changes)
        ]
        minibatches, partitions = self._cut(decided.ids, calls)
        return Chosen(
            step=lines.step,
            ids=decided.ids,
            cursor=lines.cursor,
            calls={call.name: self._units(lines, call) for call in calls},
            partitions=partitions,
            minibatches=minibatches,
            dropped=decided.dropped,
            carried=tuple(self._left_to_next(lines, decided.carried)),
            whole=decided.whole,
        )

    def _units(self, lines: StepLines, call: MFC) -> int:
        """In how many parts a call is made; evaluation data were cut when the step opened, maybe for other workers."""
        units, cut = self._plan.units(call.name), lines.opened.eval_partitions
        return units if call.dataset == "train" or str(units) in cut else max(map(int, cut))

    def _left_to_next(self, lines: StepLines, ids: Ids) -> Iterator[Carried]:
        """Samples of the same part of a call, and begun in the same step, are told of together where they can be."""
        made = {
            sample: (lines.opened.begun.get(sample, lines.step), call, part)
            for call in (lines.in_rounds(self._plan.in_rounds) if ids else ())
            for part, of_part in enumerate(self.parts(lines, call))
            for sample in of_part
        }
        for (since, call, part), alike in groupby(ids, key=made.__getitem__):
            yield Carried(tuple(alike), since, call, part)

    def _epochs_ended(self, batch: StepSamples, before: StepLines | None) -> int | None:
        """How many epochs are over, where one ended since the step before was opened; counted from 1."""
        order = self._data.order
        if self._data.choice is None:
            return batch.epoch + 1 if batch.ends_epoch else None
        ended = order.epochs_before(batch.next_cursor)
        return ended if ended > order.epochs_before(order.start if before is None else before.opened.cursor) else None

    def _cursor(self, before: StepLines | None) -> int:
        return self._data.order.start if before is None else before.cursor

    def _batch_after(self, before: StepLines | None) -> StepSamples:
        choice, cursor = self._data.choice, self._cursor(before)
        if not isinstance(choice, FirstToEnd):
            return self._draw(cursor)
        if before is not None and not before.is_whole:
            return self._data.order.draw(cursor, choice.in_flight)  # as many as it may draw yet
        step = 1 if before is None else before.step + 1
        begun, carried = self._carried(step, before)
        groups = list(dict.fromkeys(map(group_of, carried)))
        ended = groups[: before.chosen.whole] if before is not None and before.chosen is not None else []
        kept = set(map(group_of, begun))
        whole = sum(group in kept for group in ended)
        return self._data.order.draw(cursor, more_in_flight(choice, self._data.batch.rows, whole, len(groups) - whole))

    def _cut(self, ids: Ids, calls: Iterable[MFC], trained: bool = True) -> tuple[Cuts, dict[str, Cuts]]:
        """Minibatches of training samples, and the parts for every data-parallel size that one of these calls has."""
        if not ids:
            return (), {}
        sizes = self._sizes(calls, "train")
        divided = {dp: self._data.divide("train", ids, dp, trained=trained) for dp in sizes or [1]}
        minibatches, _ = next(iter(divided.values()))  # the same for every size
        return minibatches, {str(dp): divided[dp][1] for dp in sizes}

    def _sizes(self, calls: Iterable[MFC], source: str) -> list[int]:
        cut = [call for call in calls if call.dataset == source and not call.changes]
        return sorted({self._plan.units(call.name) for call in cut})

"""Where steps come from: the next samples in the data set's order, cut into minibatches and data-parallel parts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.data.batch import Batch
from hpcrl.data.datasets import open_datasets, open_order
from hpcrl.data.order import SampleOrder, StepSamples, row_of, sample_ids
from hpcrl.data.partition import Positions, partition_step, share_out
from hpcrl.data.rows.kind import Dataset, Indexes
from hpcrl.durable.journal import Cuts, Ids, Opened
from hpcrl.master.schedule import RunSchedule
from hpcrl.placement.plan import Plan
from hpcrl.recipes.algorithm import algorithm_of


@dataclass(frozen=True)
class RunData:
    """The data sets of a run, opened once by its master, the order of the training rows, and how a step cuts them."""

    datasets: Mapping[str, Dataset]
    order: SampleOrder
    eval_ids: Ids
    batch: Batch
    notices: Sequence[str]
    """What is left out and why."""

    def steps(self, schedule: RunSchedule) -> int:
        """How many training steps the run has, unless it is stopped before."""
        return schedule.steps(self.order.batches_per_epoch)

    def divide(self, source: str, ids: Ids, parts: int) -> tuple[tuple[Positions, ...], tuple[Positions, ...]]:
        """(minibatches, parts) of a step's samples, by position; samples of evaluation data are one minibatch."""
        lengths = self.datasets[source].lengths(ids)
        if source == "eval":
            return partition_step(lengths, 1, parts)
        return partition_step(lengths, self.batch.minibatches, parts, self._rows(ids))

    def share_out(self, ids: Ids, minibatches: Cuts, made: Sequence[int], parts: int) -> tuple[Ids, ...]:
        """The samples of each part of a train_step, for which rows of so many tokens were made besides the data's."""
        lengths = [own + longest for own, longest in zip(self.datasets["train"].lengths(ids), made, strict=True)]
        return take(ids, share_out(lengths, minibatches, parts, self._rows(ids)))

    def _rows(self, ids: Ids) -> list[str] | None:
        """The row of each sample, where rows are kept whole."""
        return [row_of(sample) for sample in ids] if self.batch.kept_whole == "row" else None


def open_data(experiment: ExperimentConfig, indexes: Indexes) -> RunData:
    """Check the experiment's data sets, and tokenise what lengths decide about. May take minutes. Raises DataError."""
    algorithm = algorithm_of(experiment)
    datasets, batch = open_datasets(experiment, algorithm.rows, indexes), algorithm.batch(experiment)
    order = open_order(experiment, algorithm.rows, batch, datasets["train"].ids)
    eval_ids = sample_ids(datasets["eval"].ids, 0) if "eval" in datasets else ()
    notices = [dataset.notice for dataset in datasets.values() if dataset.notice]
    return RunData(datasets, order, eval_ids, batch, notices)


def take(ids: Ids, cuts: Cuts) -> tuple[Ids, ...]:
    """The ids at the positions of each cut."""
    return tuple(tuple(ids[i] for i in cut) for cut in cuts)


class StepSource:
    """Makes the `Opened` line of each step: a pure function of the configuration, the data, and the step before.

    Cutting samples takes their lengths, and these a tokenizer: `measure` and `look_ahead` have it done elsewhere, so
    that `open` and `parts` take no time.
    """

    def __init__(
        self,
        plan: Plan,
        experiment: ExperimentConfig,
        data: RunData,
        schedule: RunSchedule,
        in_background: Callable[[Callable[[], None]], Future[None]],
    ) -> None:
        self.deterministic = experiment.deterministic
        self._plan = plan
        self._seed = experiment.seed
        self._data = data
        self.schedule = schedule
        self._in_background = in_background
        self._measuring: Future[None] | None = None
        self._eval_partitions = self._cut("eval", data.eval_ids)[1]

    # ── ahead of time ─────────────────────────────────────────────────────────────────────────────────────────────────
    def measure(self, opened: Iterable[Opened]) -> None:
        """Tokenise the samples of steps that are open, whose train steps' shares are cut by their lengths."""
        for line in opened:
            self._data.datasets["train"].lengths(line.ids)

    def look_ahead(self, before: Opened | None) -> None:
        """Have the samples of the step after this one, if the run has one, tokenised in the background."""
        step = self.schedule.first_step if before is None else before.step + 1

        def tokenise() -> None:
            batch = self._batch_after(before)
            if self.schedule.exists(step, batch.epoch):
                self._data.datasets["train"].lengths(batch.ids)

        self._measuring = self._in_background(tokenise)

    def is_ready(self) -> bool:
        """Whether what was looked at ahead can be opened. Raises what the tokenizer raised."""
        if self._measuring is None or not self._measuring.done():
            return False
        self._measuring.result()
        return True

    # ── a step ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def exists(self, step: int, before: Opened | None) -> bool:
        """Whether the run has this step."""
        return self.schedule.exists(step, self._batch_after(before).epoch)

    def open(self, step: int, before: Opened | None) -> Opened:
        """The next step, which exists."""
        batch = self._batch_after(before)
        due = self.schedule.due(step, batch.epoch + 1 if batch.ends_epoch else None)
        ids = batch.ids if due.train else ()
        minibatches, partitions = self._cut("train", ids)
        sources = {"train": due.train, "eval": due.evaluate}
        return Opened(
            step=step,
            ids=ids,
            epoch=batch.epoch,
            cursor=batch.next_cursor if due.train else self._cursor(before),
            calls={call.name: self._plan.units(call.name) for call in self._plan.calls if sources[call.dataset]},
            partitions=partitions,
            minibatches=minibatches,
            seed=self._seed,
            checkpoint=due.checkpoint or not self._plan.trained,  # where no role changes, a cut costs nothing
            export=due.export,
            eval_ids=self._data.eval_ids if due.evaluate else (),
            eval_partitions=self._eval_partitions if due.evaluate else {},
        )

    def parts(self, opened: Opened, call: str) -> Sequence[Ids]:
        """The ids of each part that a call is made in; a train_step is one, whose shares are cut later."""
        mfc = self._plan.call(call)
        if mfc.kind == "train_step":
            return [opened.ids]
        training = mfc.dataset == "train"
        ids, cuts = (opened.ids, opened.partitions) if training else (opened.eval_ids, opened.eval_partitions)
        return take(ids, cuts[str(opened.calls[call])])

    def minibatches(self, opened: Opened) -> tuple[Ids, ...]:
        """The ids of each minibatch."""
        return take(opened.ids, opened.minibatches)

    def shares(self, opened: Opened, made: Sequence[int], parts: int) -> tuple[Ids, ...]:
        """The ids of each part of a train_step, balanced minibatch by minibatch.

        `made` are the tokens of each sample's longest row among those that calls have made for the train_step.
        """
        return self._data.share_out(opened.ids, opened.minibatches, made, parts)

    def _cursor(self, before: Opened | None) -> int:
        return self._data.order.start if before is None else before.cursor

    def _batch_after(self, before: Opened | None) -> StepSamples:
        return self._data.order.batch_at(self._cursor(before))

    def _cut(self, source: str, ids: Ids) -> tuple[Cuts, dict[str, Cuts]]:
        """Minibatches, and the parts for every data-parallel size that a call on this source has."""
        if not ids:
            return (), {}
        calls = [call for call in self._plan.calls if call.dataset == source and call.kind != "train_step"]
        sizes = sorted({self._plan.units(call.name) for call in calls})
        return self._data.divide(source, ids, 1)[0], {str(dp): self._data.divide(source, ids, dp)[1] for dp in sizes}

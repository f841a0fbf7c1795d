"""Where steps come from: the next samples in the data set's order, cut into minibatches and data-parallel parts."""

from collections.abc import Mapping, Sequence

from hpcrl.config.experiment import Experiment, PPOExperiment
from hpcrl.data.datasets import Dataset, open_datasets, open_order
from hpcrl.data.order import SampleOrder, sample_ids
from hpcrl.data.partition import partition_step
from hpcrl.durable.journal import Cuts, Ids, Opened
from hpcrl.master.schedule import RunSchedule
from hpcrl.placement.plan import Plan


def step_source(plan: Plan, experiment: Experiment, calendar: RunSchedule) -> "StepSource":
    """Over the experiment's data sets, which are opened and checked here. Raises DataError."""
    datasets = open_datasets(experiment)
    minibatches = experiment.ppo.minibatches if isinstance(experiment, PPOExperiment) else 1
    return StepSource(plan, experiment, datasets, open_order(experiment, datasets["train"].ids), calendar, minibatches)


def take(ids: Ids, cuts: Cuts) -> tuple[Ids, ...]:
    """The ids at the positions of each cut."""
    return tuple(tuple(ids[i] for i in cut) for cut in cuts)


class StepSource:
    """Makes the `Opened` line of each step: a pure function of the configuration, the data, and the step before."""

    def __init__(
        self,
        plan: Plan,
        experiment: Experiment,
        datasets: Mapping[str, Dataset],
        order: SampleOrder,
        calendar: RunSchedule,
        minibatches: int,
    ) -> None:
        self.deterministic = experiment.deterministic
        self.notices = [dataset.notice for dataset in datasets.values() if dataset.notice]
        self._plan = plan
        self._seed = experiment.seed
        self._datasets = datasets
        self._order = order
        self._calendar = calendar
        self._minibatches = minibatches
        self._eval_ids = sample_ids(datasets["eval"].ids, 0) if "eval" in datasets else ()
        self._eval_partitions = self._cut("eval", self._eval_ids, 1)[1]

    @property
    def steps(self) -> int:
        """How many training steps the run has, unless it is stopped before."""
        return self._calendar.steps(self._order.batches_per_epoch)

    def open(self, step: int, before: Opened | None) -> Opened | None:
        """The next step, or None when the run has no more."""
        cursor = self._order.start if before is None else before.cursor
        batch = self._order.batch_at(cursor)
        if not self._calendar.exists(step, batch.epoch):
            return None
        due = self._calendar.due(step, batch.epoch + 1 if batch.ends_epoch else None)
        ids = batch.ids if due.train else ()
        minibatches, partitions = self._cut("train", ids, self._minibatches)
        sources = {"train": due.train, "eval": due.evaluate}
        return Opened(
            step=step,
            ids=ids,
            epoch=batch.epoch,
            cursor=batch.next_cursor if due.train else cursor,
            calls={call.name: self._plan.units(call.name) for call in self._plan.calls if sources[call.dataset]},
            partitions=partitions,
            minibatches=minibatches,
            seed=self._seed,
            checkpoint=due.checkpoint,
            export=due.export,
            eval_ids=self._eval_ids if due.evaluate else (),
            eval_partitions=self._eval_partitions if due.evaluate else {},
        )

    def parts(self, opened: Opened, source: str, count: int) -> Sequence[Ids]:
        """The ids of each of so many data-parallel parts: as the step was opened with, or as it would have been."""
        training = source == "train"
        ids, cuts = (opened.ids, opened.partitions) if training else (opened.eval_ids, opened.eval_partitions)
        if str(count) in cuts:
            return take(ids, cuts[str(count)])
        lengths = self._datasets[source].lengths(ids)
        return take(ids, partition_step(lengths, self._minibatches if training else 1, count)[1])

    def minibatches(self, opened: Opened) -> tuple[Ids, ...]:
        """The ids of each minibatch."""
        return take(opened.ids, opened.minibatches)

    def _cut(self, source: str, ids: Ids, minibatches: int) -> tuple[Cuts, dict[str, Cuts]]:
        """Minibatches, and the parts for every data-parallel size that a call on this source has."""
        if not ids:
            return (), {}
        lengths = self._datasets[source].lengths(ids)
        sizes = {len(self._plan.parts(call.name)) for call in self._plan.calls if call.dataset == source}
        cuts = {dp: partition_step(lengths, minibatches, dp) for dp in sorted(sizes)}
        found = next(iter(cuts.values()))[0]
        return found, {str(dp): parts for dp, (_, parts) in cuts.items()}

"""Where steps come from: the next samples in the order of the data set, cut into minibatches and data-parallel parts."""

from collections.abc import Mapping, Sequence

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.data.datasets import Dataset, Order
from hpcrl.data.partition import partition_step
from hpcrl.durable.journal import Opened
from hpcrl.placement.plan import Plan
from hpcrl.workers.calendar import Calendar


class StepSource:
    """Makes the `Opened` line of each step: a pure function of the configuration, the data, and the step before."""

    def __init__(
        self,
        plan: Plan,
        experiment: ExperimentConfig,
        datasets: Mapping[str, Dataset],
        calendar: Calendar,
        minibatches: int,
    ) -> None:
        self.deterministic = experiment.deterministic
        self._plan = plan
        self._experiment = experiment
        self._datasets = datasets
        self._calendar = calendar
        self._minibatches = minibatches
        self._order = Order(datasets["train"], experiment.seed)
        self._sizes = {
            source: sorted({self._width(call.name) for call in plan.calls if call.source == source})
            for source in ("train", "eval")
        }

    def open(self, step: int, before: Opened | None) -> Opened | None:
        """The next step, or None when the run has no more."""
        cursor = before.cursor if before is not None else self._order.start
        batch = self._order.batch_at(cursor)
        if not self._calendar.exists(step, batch.epoch):
            return None
        ended = batch.epoch + 1 if batch.ends_epoch else None
        due = self._calendar.due(step, ended)
        ids = batch.ids if due.train else ()
        eval_ids = self._datasets["eval"].ids if due.evaluate else ()
        minibatches, partitions = self._cut("train", ids, self._minibatches)
        return Opened(
            step=step,
            ids=tuple(ids),
            eval_ids=tuple(eval_ids),
            epoch=batch.epoch,
            cursor=batch.next_cursor if due.train else cursor,
            calls=tuple(call.name for call in self._plan.calls if self._takes_part(call.source, due.train, due.evaluate)),
            partitions=partitions,
            eval_partitions=self._cut("eval", eval_ids, 1)[1],
            minibatches=minibatches,
            seed=self._experiment.seed,
            checkpoint=due.checkpoint,
            export=due.export,
        )

    def parts(self, opened: Opened, source: str, dp: int) -> Sequence[Sequence[str]]:
        """The ids of each data-parallel part."""
        return (opened.partitions if source == "train" else opened.eval_partitions)[str(dp)]

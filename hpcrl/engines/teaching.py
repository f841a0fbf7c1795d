"""Routers' own losses over a mini-batch of all ranks. Knows no optimizer and no objective."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hpcrl.engines.engine import Sequences
from hpcrl.engines.model import PackedModel
from hpcrl.engines.pipeline import Pipeline
from hpcrl.models.lessons import Lessons, RouterLoss, RouterNumbers
from hpcrl.parallel.replica import ReplicaGroups


@contextmanager
def taught_routers(
    loss: RouterLoss, model: PackedModel, pipeline: Pipeline, groups: ReplicaGroups, sequences: Sequences
) -> Iterator[Callable[[], RouterNumbers]]:
    """While it is open, a gradient of these sequences has that of routers' losses too; gives what tells their numbers
    once there is a gradient, which all ranks have to ask.

    A pass without gradients tells first what routers say of all rows, those of other ranks included. Where neither
    loss has a weight there is none: numbers are then those of the rows as the gradient's own pass sees them.
    """
    transformer = model.transformer
    if (experts := transformer.config.experts) is None:
        yield RouterNumbers
        return
    teaches = bool(loss.aux or loss.z)
    lessons = Lessons(transformer.config.blocks, experts.count, transformer.device, teaches)

    def numbers() -> RouterNumbers:
        return lessons.sums.numbers(groups.pp.total(groups.dp.total(lessons.sums.vector)), loss)

    transformer.teach(lessons)
    try:
        if not teaches:
            yield numbers
            return
        pipeline.visit(sequences)
        vector = groups.pp.total(groups.dp.total(lessons.sums.vector))
        said = lessons.sums.numbers(vector, loss)
        if lessons.sums.picked(vector)[1]:
            lessons.begin(loss, vector, groups.tp.size)
        yield lambda: said
    finally:
        transformer.teach(None)

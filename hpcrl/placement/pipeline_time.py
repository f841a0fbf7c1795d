"""How long a pipeline takes, if each micro-batch takes each stage a known time: the orders that stages follow, played.

Times are in nanoseconds; a stage does one thing at a time. Shapes: S stages, M micro-batches.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from hpcrl.data.pipeline_order import Compute, Exchange, Step, inference_order, training_order
from hpcrl.ops.pipeline import pipeline
from hpcrl.placement.visits import Visits


class Played(NamedTuple):
    """What a pipeline's stages are given."""

    forward_SM: np.ndarray
    backward_SM: np.ndarray | None
    """None where nothing is trained."""
    sent_M: np.ndarray
    """How long the rows of a micro-batch are on their way between two stages, and its gradients back."""


def duration(of: Played) -> float:
    """From the begin of the first stage to the end of the last to end."""
    stages, count = of.forward_SM.shape
    if not count:
        return 0.0
    if stages == 1:
        return float(of.forward_SM.sum() + (0.0 if of.backward_SM is None else of.backward_SM.sum()))
    found = pipeline(of.forward_SM, of.backward_SM, of.sent_M)
    return in_python(of) if found is None else found


def in_python(of: Played) -> float:
    """The same of at least two stages, where nothing is compiled."""
    return max(_Play(of).ends())


class _Stage:
    """One that has come so far, at such a time."""

    def __init__(self, number: int, order: Iterator[Step]) -> None:
        self.number = number
        self.now = 0.0
        self.waits: Exchange | None = None
        self.on_the_way: Exchange | None = None
        """What was only sent: it is waited for before the next is."""
        self.order = order


class _Play:
    """An exchange is over once both sides have begun it, and what is sent has arrived. Who receives waits for that."""

    def __init__(self, of: Played) -> None:
        stages, count = of.forward_SM.shape
        order = inference_order if of.backward_SM is None else training_order
        self._forward = of.forward_SM.tolist()
        self._backward = [] if of.backward_SM is None else of.backward_SM.tolist()
        self._sent = of.sent_M.tolist()
        self._begun: dict[Exchange, tuple[int, float]] = {}
        """By the first of its sides, when."""
        self._over: dict[Exchange, float] = {}
        self._stages = [_Stage(number, order(number, stages, count)) for number in range(stages)]

    def ends(self) -> list[float]:
        """Of each stage."""
        left = list(self._stages)
        while left:
            before = len(self._over) + len(self._begun)
            left = [stage for stage in left if not self._went_through(stage)]
            assert not left or len(self._over) + len(self._begun) > before, "the orders of stages fit each other"
        return [stage.now for stage in self._stages]

    def _went_through(self, stage: _Stage) -> bool:
        """Go on as far as others have come; whether that is to the end."""
        if stage.waits is not None and not self._passed(stage, stage.waits):
            return False
        for step in stage.order:
            if isinstance(step, Compute):
                of = self._forward if step.kind == "forward" else self._backward
                stage.now += of[stage.number][step.micro_batch]
            elif not self._passed(stage, step):
                return False
        if stage.on_the_way is not None and stage.on_the_way not in self._over:
            stage.waits = stage.on_the_way
            return False
        stage.now = max(stage.now, self._over.get(stage.on_the_way, 0.0)) if stage.on_the_way else stage.now
        return True

    def _passed(self, stage: _Stage, step: Exchange) -> bool:
        """Begin an exchange; whether the stage may go on."""
        stage.waits = step
        if step is stage.on_the_way:
            return step in self._over
        sends, receives = _ways(stage.number, step)
        if sends and stage.on_the_way is not None:
            if stage.on_the_way not in self._over:
                return False
            stage.now, stage.on_the_way = max(stage.now, self._over[stage.on_the_way]), None
        self._begin(stage, step)
        if receives:
            if step not in self._over:
                return False
            stage.now = max(stage.now, self._over[step])
        elif sends:
            stage.on_the_way = step
        stage.waits = None
        return True

    def _begin(self, stage: _Stage, step: Exchange) -> None:
        if step in self._over:
            return
        if step not in self._begun:
            self._begun[step] = stage.number, stage.now
            return
        number, since = self._begun[step]
        if number != stage.number:
            sent = [self._sent[it] for it in (step.forward, step.backward) if it is not None]
            self._over[step] = max(since, stage.now) + max(sent)


def _ways(stage: int, step: Exchange) -> tuple[bool, bool]:
    """Whether a stage sends in an exchange, and receives."""
    there, back = step.forward is not None, step.backward is not None
    return (there, back) if step.lower == stage else (back, there)


def visits_duration(costs: Sequence[np.ndarray], sent_V: np.ndarray, of: Visits) -> float:
    """Of a generation whose stages make one visit after another, each a tick after the stage before: in a tick all
    exchange, so that it lasts as long as the slowest. `costs`: [V] of each stage, one array where neighbours take as
    long."""
    stages = len(costs)
    if stages == 1 or not len(sent_V):
        return float((costs[0] * of.times_V).sum())
    order, first = of.order_V, 0
    ticks = np.zeros(len(order) + stages - 1)
    for _, alike in groupby(costs, key=id):
        count = len(list(alike))
        slowest = _slowest(costs[first][order], count)
        found = ticks[first : first + len(slowest)]
        np.maximum(found, slowest, out=found)
        first += count
    return float(ticks.sum() + sent_V[order].sum())


def _slowest(costs_V: np.ndarray, stages: int) -> np.ndarray:
    """[V + stages - 1]: of so many stages that take as long, the slowest of each tick: twice as many at a time."""
    found, done = np.concatenate([costs_V, np.zeros(stages - 1)]), 1
    while done < stages:
        more = min(done, stages - done)
        found[more:] = np.maximum(found[more:], found[:-more])
        done += more
    return found

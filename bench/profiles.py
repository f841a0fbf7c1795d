"""A profile of a small model in a pool of ranks: what its blocks, and what is around them, take while all ranks are
busy, and what two ranks exchange. Measured by what `hpcrl profile` measures with."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hpcrl.algos import profile_links
from hpcrl.algos.measurer import alone
from hpcrl.algos.profile_rounds import points_of
from hpcrl.algos.profile_subject import WHOLE, Subject, Timer, opened
from hpcrl.config.model import OptimizerConfig, TrainedModelConfig
from hpcrl.families.config import DecoderConfig
from hpcrl.parallel.group import Group
from hpcrl.parallel.replica import ReplicaGroups, groups_of, sharing
from hpcrl.placement.layouts import Layout
from hpcrl.placement.profile_points import FEW, MANY, Sides, Timed
from hpcrl.placement.rates import Links
from hpcrl.workers.meter import Meter

TRAINED = TrainedModelConfig(path="", optimizer=OptimizerConfig(lr=1e-5))
SIDES = Sides(tokens=(128, 512), lengths=(16, 128), rows=(1, 12), contexts=(16, 128))
BUDGET_S = 6.0
"""For each kind of call."""
EXCHANGING = 2.5
"""Times as much where ranks exchange, since times differ more there."""


class _Clock:
    """Of this thread's CPU, for a meter."""

    def now(self) -> float:
        return time.process_time()

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


def everyone_of(context: Any) -> Group:
    """The group of all ranks of a pool."""
    ranks = tuple(context.everyone)
    context.form([ranks])
    group: Group = context.group(ranks)
    return group


def timer_of(context: Any, cpu: bool) -> Timer:
    """For what all ranks do at once; `cpu`: by the CPU time of each."""
    meter = Meter()
    if cpu:
        meter.clock = _Clock()
    now = time.process_time if cpu else time.perf_counter
    return Timer([everyone_of(context)], torch.device("cpu"), meter, now)


def groups_in(context: Any, layout: Layout) -> ReplicaGroups:
    """Of a layout on all ranks; of one that needs fewer, on as many of them as there are places for it."""
    mesh = everyone_of(context).ranks
    whole = Layout(layout.dp * (len(mesh) // layout.size), layout.tp, layout.pp)
    context.form(sharing(whole, mesh))
    groups = groups_of(context, whole, mesh)
    return alone(groups) if layout.dp == layout.pp == 1 else groups


POINTS: Mapping[str, tuple[Callable[..., dict[str, float]], str, str, dict[str, Any]]] = {
    "predict": (Subject.predicted, "tokens", "lengths", {"passes": True}),
    "train": (Subject.trained, "tokens", "lengths", {"passes": True}),
    "read": (Subject.read, "tokens", "lengths", {}),
    "decode": (Subject.decoded, "rows", "contexts", {"unit": 1}),
}
"""What is measured, how, along which sides."""


def profiled(
    context: Any, config: DecoderConfig, tp: int, what: str, sides: Sides, budget_s: float, cpu: bool, folder: Path
) -> Sequence[Timed]:
    """On a rank, of a model that is cut among so many."""
    timer, groups = timer_of(context, cpu), groups_in(context, Layout(tp=tp))
    place = folder / f"{what}-{tp}-{timer.together[0].index}"
    subjects = [_subject(config, blocks, groups, timer, place, sides) for blocks in (FEW, MANY)]
    point, x, y, how = POINTS[what]
    return points_of(subjects, timer, budget_s, point, getattr(sides, x), getattr(sides, y), **how)


def _subject(
    config: DecoderConfig, blocks: int, groups: ReplicaGroups, timer: Timer, folder: Path, sides: Sides
) -> Subject:
    engine = opened(folder / str(blocks), replace(config, blocks=blocks), TRAINED, groups, timer, WHOLE)
    return Subject(engine, timer, config.vocabulary_size, shortest=sides.lengths[0])


def links(context: Any) -> Links:
    """On a rank: what exchanges with the other take, and messages."""
    timer, group = timer_of(context, cpu=False), everyone_of(context)
    return profile_links.links(timer, group)

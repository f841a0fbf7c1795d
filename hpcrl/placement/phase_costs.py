"""What a call's passes are reckoned to take on one of its workers, pass by pass, as workers measure them in runs. Pure.

Of the slowest part, as texts are spread; a run's own steps had as many tokens as their figures say.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from hpcrl.config.judge import slots_of
from hpcrl.config.model import TrainedModelConfig
from hpcrl.dataflow.graph import MFC
from hpcrl.placement.costs import CostModel
from hpcrl.placement.draws import drawn_by
from hpcrl.placement.exchanges import Party, party
from hpcrl.placement.judges import models_held
from hpcrl.placement.memory import parameters_held
from hpcrl.placement.model_costs import ModelCosts, Place
from hpcrl.placement.placing import Placed
from hpcrl.placement.rates import Fixed, Pass, Rates
from hpcrl.placement.shards import Cut
from hpcrl.placement.workload import MicroBatches

PASSES: Mapping[str, Mapping[str, Pass]] = MappingProxyType(
    {
        "inference": {"forward": "forward"},
        "evaluate": {"forward": "forward"},
        "train_step": {"forward": "taught", "backward": "backward"},
        "generate": {"prefill": "prefill", "decode": "decode"},
    }
)
"""Kind of call → its passes, by the phases in which workers measure them."""


class Spent(NamedTuple):
    """Nanoseconds of a call's passes of one kind on a worker, and what they go by."""

    work: float
    """Without what each pass takes however small it is."""
    fixed: float
    """That, of all passes."""
    tokens: int
    """That the worker's model is given in the call."""
    passes: int
    """Micro-batches; of a generation, visits."""

    def with_more(self, of: "Spent") -> "Spent":
        """Both, one after the other."""
        return Spent(self.work + of.work, self.fixed + of.fixed, self.tokens + of.tokens, self.passes + of.passes)


def spent(costs: CostModel, call: MFC, place: Placed, tokens: int, stage: int) -> dict[Pass, Spent]:
    """Of a call of a model in micro-batches of so many tokens, on a worker of this stage, by the kind of pass."""
    config = models_held(costs.experiment)[call.role]
    recompute = isinstance(config, TrainedModelConfig) and config.recompute and call.kind == "train_step"
    slots = costs.experiment.cluster.workers_per_node
    at = Place(party(place.layout, place.ranks, "tp", slots), place.layout.pp, place.backend, recompute)
    both = [
        ModelCosts(costs.models[call.role], config.dtype, rates, at)
        for rates in (costs.rates, without_fixed(costs.rates))
    ]
    tokens, dp = tokens or config.micro_batch_tokens, place.layout.dp
    if call.kind == "generate":
        return _generated(costs, call, both, dp, tokens, stage)
    work = costs.workload
    if call.kind != "train_step":
        return {"forward": _slowest(both, "forward", [work.predicted(dp, tokens)], stage)}
    parts = work.trained(dp, tokens)
    found = {of: _slowest(both, of, parts, stage) for of in ("taught", "backward")}
    return {of: _times(it, work.passes) for of, it in found.items()}  # type: ignore[misc]


def without_fixed(rates: Rates) -> Rates:
    """As if nothing were paid for what is small."""
    return msgspec.structs.replace(rates, fixed=Fixed(0, 0, 0, 0))


def updating(costs: CostModel, call: MFC, place: Placed) -> float:
    """Nanoseconds of all updates of a train_step by a worker that has the whole model."""
    config = models_held(costs.experiment)[call.role]
    model, at = costs.models[call.role], Place(Party(1, 1), 1, place.backend)
    elements = parameters_held(model, Cut(0, 1)) / place.layout.dp
    times = costs.workload.minibatches * costs.workload.passes
    return times * ModelCosts(model, config.dtype, costs.rates, at).update(elements)


def _times(it: Spent, times: int) -> Spent:
    return Spent(it.work * times, it.fixed * times, it.tokens * times, it.passes * times)


def _slowest(both: Sequence[ModelCosts], of: Pass, minibatches: Iterable[Sequence[MicroBatches]], stage: int) -> Spent:
    """Of each minibatch its slowest part, together."""
    found = Spent(0.0, 0.0, 0, 0)
    for parts in minibatches:
        whole, free = ([float(each[stage].sum()) for each in costs.passes(of, parts)] for costs in both)
        most = max(range(len(parts)), key=whole.__getitem__)
        own = Spent(free[most], whole[most] - free[most], int(parts[most].tokens_M.sum()), len(parts[most]))
        found = found.with_more(own)
    return found


def _generated(
    costs: CostModel, call: MFC, both: Sequence[ModelCosts], dp: int, tokens: int, stage: int
) -> dict[Pass, Spent]:
    """Of the part that decodes longest."""
    found: list[dict[Pass, Spent]] = []
    drawn = drawn_by(call, costs.experiment, both[0].config.max_positions)
    slots = slots_of(costs.experiment, call.role)
    for visits in costs.workload.generated(dp, both[0].place.pp, slots, tokens, drawn):
        whole, free = (each.visits(visits)[stage] * visits.times_V for each in both)
        begins = visits.tokens_V > 0
        read = int(visits.tokens_V.sum() + (visits.rows_V * visits.times_V).sum())
        ways: Any = {"prefill": begins, "decode": ~begins & (visits.rows_V > 0)}
        told: dict[Pass, Spent] = {
            of: Spent(float(free[those].sum()), float((whole - free)[those].sum()), read, visits.rounds)
            for of, those in ways.items()
        }
        found.append(told)
    return max(found, key=lambda it: it["decode"].work + it["prefill"].work, default={})

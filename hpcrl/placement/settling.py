"""An experiment whose allocation is settled by a search."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hpcrl.errors import ConfigurationError
from hpcrl.garbage import uncollected
from hpcrl.ops.search_chain import Scorer
from hpcrl.placement import allocate
from hpcrl.placement.candidate import settings_with
from hpcrl.placement.capacity import Capacity, on_its_device
from hpcrl.placement.costs import CostModel, read_costs
from hpcrl.placement.lengths import Lengths
from hpcrl.placement.rates import Rates
from hpcrl.placement.search_inputs import lengths_asked, longer, rates_asked, usable_bytes
from hpcrl.placement.searching import Searched, search
from hpcrl.placement.sizes import size_in_words
from hpcrl.placement.workload import workload_of


@dataclass(frozen=True, eq=False)
class Found:
    """A search's answer, and what it was reckoned from."""

    experiment: Any
    """On the device that it comes to."""
    searched: Searched
    costs: CostModel
    lengths: Lengths

    def settled(self) -> Any:
        """With the best plan. Raises ConfigurationError where it does not fit."""
        best = self.searched.best[0]
        if best.score.excess:
            choices, cluster = self.searched.choices, self.experiment.cluster
            need = max(Scorer(choices.problem).needs(best.plan).values(), key=lambda need: need.bytes)
            during = f"{'the move before ' * need.moves}{choices.calls[need.call].name}"
            workers = cluster.most_nodes * cluster.workers_per_node
            raise ConfigurationError(
                [
                    f"No plan fits these {workers} workers of {size_in_words(choices.problem.capacity)}: the one that "
                    f"lacks least needs {size_in_words(need.bytes)} on its fullest worker, in {during}."
                ],
                "Add nodes, or take smaller micro_batch_tokens or generation.slots, offload or bf16.",
            )
        candidate = self.searched.candidate(best)
        return replace(settings_with(self.experiment, candidate), allocation=allocate.MANUAL)

    def under(self, factor: float) -> CostModel:
        """What all would cost, were responses so many times as long."""
        lengths = longer(self.experiment, self.lengths, factor)
        return replace(self.costs, workload=workload_of(self.experiment, lengths), _made={})


def search_for(experiment: Any, capacity: Capacity | None, calibrate: Callable[[Rates], Rates] | None = None) -> Found:
    """Search as the settings say, by rates that are calibrated, if somebody can. Reads each model's config.json. Raises
    ConfigurationError, DataError."""
    if capacity is not None:
        experiment = on_its_device(experiment, capacity)
    rates = rates_asked(experiment) if calibrate is None else calibrate(rates_asked(experiment))
    lengths, models = lengths_asked(experiment, rates), allocate.placed_models(experiment)
    costs = read_costs(experiment, rates, workload_of(experiment, lengths))
    most, asked = usable_bytes(experiment, rates, capacity), experiment.search
    try:
        with uncollected():
            searched = search(experiment, models, costs, most, proposals=asked.proposals, seed=asked.seed)
    except ValueError as error:
        raise ConfigurationError([f"No search for this graph: {error}."], "Set allocation to heuristic.") from None
    return Found(experiment, searched, costs, lengths)

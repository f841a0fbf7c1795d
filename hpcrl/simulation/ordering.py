"""The best plans that a search has found, in the order of steps that are simulated with them.

A search's own schedule is fast, and knows calls, moves and workers alone; a simulated step has the master's order, the
rows, the files and the messages as well.
"""

from dataclasses import replace
from typing import Any

from hpcrl.config.changes import with_nodes
from hpcrl.config.control import Frequency
from hpcrl.ops.search_problem import Found as Plan
from hpcrl.placement.candidate import settings_with
from hpcrl.placement.costs import CostModel
from hpcrl.placement.lengths import Lengths
from hpcrl.placement.settling import Found
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.simulation.disturbances import Disturbances
from hpcrl.simulation.durations import durations_of
from hpcrl.simulation.rows import drawn_rows
from hpcrl.simulation.simulate import Simulated, simulate
from hpcrl.simulation.told import step_seconds, steps_to_tell


def simulated_steps(
    experiment: Any,
    costs: CostModel,
    lengths: Lengths,
    steps: int,
    disturbances: Disturbances | None = None,
    *,
    replaces_nodes: bool = True,
    seed: int = 0,
) -> Simulated:
    """So many steps of an experiment, without evaluations, with texts of such lengths."""
    control = replace(experiment.control, steps=steps, epochs=None, evaluate=Frequency())
    experiment = replace(experiment, control=control)
    rows = drawn_rows(experiment, lengths, steps, seed)
    return simulate(
        experiment,
        lambda plan: durations_of(_on(plan.nodes, costs), plan),
        rows,
        disturbances or Disturbances(),
        replaces_nodes=replaces_nodes,
        seed=seed,
    )


def _on(nodes: int, costs: CostModel) -> CostModel:
    """By what the settings say of so many nodes, where a run may have several numbers."""
    if not costs.experiment.cluster.is_elastic:
        return costs
    return replace(costs, experiment=with_nodes(costs.experiment, nodes), _made={})


def in_simulated_order(found: Found) -> Found:
    """The plans that fit come by what a step of them lasts, the others behind them as they were. What the settings say
    is simulated beside them."""
    searched = found.searched
    told = [*searched.best, *([searched.own] if searched.own else [])]
    lasting = {plan.plan: simulated_step_s(found, plan) for plan in told if not plan.score.excess}
    best = sorted(searched.best, key=lambda plan: (plan.score.excess, lasting.get(plan.plan, 0.0), plan))
    return replace(found, searched=replace(searched, best=tuple(best), simulated_s=lasting))


def simulated_step_s(found: Found, plan: Plan) -> float:
    """What a step lasts with a plan of a search."""
    experiment = settings_with(found.experiment, found.searched.candidate(plan))
    costs = replace(found.costs, experiment=experiment, _made={})
    steps = steps_to_tell(algorithm_of(experiment).graph(experiment))
    return step_seconds(simulated_steps(experiment, costs, found.lengths, steps))

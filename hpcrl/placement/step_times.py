"""How long a step is expected to take on some number of nodes, by the list schedule of the search."""

from dataclasses import replace
from typing import Any, NamedTuple

from hpcrl.config.changes import with_nodes
from hpcrl.errors import HpcrlError
from hpcrl.ops.search import score_plans
from hpcrl.placement.candidate import candidate_of
from hpcrl.placement.costs import read_costs
from hpcrl.placement.options import choices_of
from hpcrl.placement.rates import Rates
from hpcrl.placement.search_inputs import lengths_asked, rates_asked
from hpcrl.placement.search_told import step_s
from hpcrl.placement.workload import workload_of

ANY = 1 << 62
"""Bytes: whether a plan fits is asked elsewhere."""


class ExpectedStep(NamedTuple):
    """How long a step is expected to take, and what that was reckoned from."""

    seconds: float
    source: str
    """Of the numbers of device and links."""
    notices: tuple[str, ...]
    """What is not known of calls."""


def expected_step(experiment: Any, nodes: int, rates: Rates | None = None) -> ExpectedStep | None:
    """On so many nodes, by the rates that it asks for or by others; None where the experiment has nothing that can be
    reckoned. Reads each model's config.json.

    Raises ConfigurationError where nothing is known of the workers' device, DataError.
    """
    at = replace(with_nodes(experiment, nodes), allocation="manual")
    rates = rates_asked(at) if rates is None else rates
    costs = read_costs(at, rates, workload_of(at, lengths_asked(at, rates)))
    candidate = candidate_of(at, nodes)
    choices = choices_of(at, {}, costs, ANY, (candidate,))
    plan = choices.plan_of(candidate)
    if plan is None:
        return None
    try:
        choices.problem.check()
    except ValueError:
        return None
    seconds = step_s(choices.problem, score_plans(choices.problem, [plan])[0])
    return ExpectedStep(seconds, f"{costs.rates.device} ({costs.rates.source})", costs.notices) if seconds else None


def expected_step_s(experiment: Any, nodes: int) -> float | None:
    """Seconds of a step; None where nothing is known of it."""
    try:
        expected = expected_step(experiment, nodes)
    except (HpcrlError, OSError, ValueError):
        return None
    return None if expected is None else expected.seconds


def expected_ratio(experiment: Any, before: int, after: int) -> float:
    """How long a step on `after` nodes is expected to take, as a share of one on `before`; where that cannot be
    reckoned, as if all work were shared evenly."""
    old, new = (expected_step_s(experiment, nodes) for nodes in (before, after))
    return before / after if old is None or new is None else new / old

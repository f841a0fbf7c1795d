"""The search for where everything is done: the best plans that chains of proposals find, and what is told of them."""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from hpcrl.config.validate import collect
from hpcrl.families.config import DecoderConfig
from hpcrl.ops.search import is_compiled, score_plans, search_all, search_chain
from hpcrl.ops.search_problem import Chain, Found, Problem
from hpcrl.placement.allocate import allocate
from hpcrl.placement.candidate import Candidate, candidate_of, settings_with
from hpcrl.placement.check import placement_problems
from hpcrl.placement.options import Choices, Costs, choices_of

ENUMERATED = 20_000_000
"""So many plans are all tried."""
PROPOSALS = 4_000_000
"""Of all chains together; a tenth where nothing is compiled."""
SEEDS = 2
"""Chains from each start."""
BEST = 5
"""Plans that are told of."""


@dataclass(frozen=True)
class Searched:
    """What was found."""

    choices: Choices
    best: tuple[Found, ...]
    """Plans, the best first."""
    own: Found | None
    """What the settings say, where that is one of the plans that there are."""
    starts: Mapping[str, Found]
    """What chains began with, by what proposes it."""
    proposals: int
    is_optimal: bool
    """Whether there is no better plan: all were tried."""
    simulated_s: Mapping[tuple[int, ...], float] = field(default_factory=dict)
    """Plan → seconds of a simulated step, of those that were simulated."""

    def candidate(self, found: Found) -> Candidate:
        return self.choices.candidate(found.plan)


def search(
    experiment: Any,
    models: Mapping[str, DecoderConfig],
    costs: Costs,
    capacity: int,
    *,
    proposals: int | None = None,
    seed: int = 1,
    threads: int | None = None,
) -> Searched:
    """The best plans on the nodes of an experiment whose workers have `capacity` bytes each.

    The answer follows from all that is given but `threads`. Raises ValueError where there are more calls than can be
    searched over.
    """
    named = dict(_starts(experiment, models))
    choices = choices_of(experiment, models, costs, capacity, named.values())
    problem = choices.problem
    problem.check()
    plans = {name: plan for name, candidate in named.items() if (plan := choices.plan_of(candidate)) is not None}
    starts = {
        name: Found(score, plan)
        for (name, plan), score in zip(plans.items(), score_plans(problem, list(plans.values())), strict=True)
    }
    if is_optimal := problem.plans <= (ENUMERATED if is_compiled() else ENUMERATED // 1000):
        found, proposals = search_all(problem, BEST), problem.plans
    else:
        proposals = (PROPOSALS if is_compiled() else PROPOSALS // 10) if proposals is None else proposals
        chains = list(chains_of(problem, [found.plan for found in starts.values()], proposals, seed))
        with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
            of_chains = list(pool.map(lambda chain: search_chain(problem, chain, BEST), chains))
        found = sorted({found for of_chain in of_chains for found in of_chain})
    return Searched(choices, _different(found), starts.get(OWN), starts, proposals, is_optimal)


OWN = "the settings"
"""The start that is what a run would have without a search."""


def _different(found: Sequence[Found]) -> tuple[Found, ...]:
    """Of plans that are worth exactly the same, the first."""
    first = {it.score: it for it in reversed(found)}
    return tuple(sorted(first.values())[:BEST])


def _starts(experiment: Any, models: Mapping[str, DecoderConfig]) -> Iterator[tuple[str, Candidate]]:
    """What proposes a plan, and that plan, as far as it may be run."""
    modes = (
        "heuristic",
        "pipe_model",
        "pipe_data",
        f"d{experiment.cluster.most_nodes * experiment.cluster.workers_per_node}",
    )
    manual = replace(experiment, allocation="manual")
    given = (allocate(replace(experiment, allocation=mode), models) for mode in modes)
    own = candidate_of(manual, experiment.cluster.most_nodes)
    for name, candidate in chain([(OWN, own)], zip(modes, given, strict=True)):
        if not collect(settings_with(manual, candidate), (placement_problems,), ()):
            yield name, candidate


def chains_of(problem: Problem, starts: Sequence[tuple[int, ...]], proposals: int, seed: int) -> Iterator[Chain]:
    """What chains are to do that begin with these plans, or with the first option of everything."""
    distinct = list(dict.fromkeys(starts or [(0,) * len(problem.calls)]))
    count = len(distinct) * SEEDS
    for number in range(count):
        share = proposals // count + (number < proposals % count)
        yield Chain(distinct[number % len(distinct)], seed * 1_000_003 + number, share)

"""What is told of a search: the best plans and the user's own, why the best is faster, and whether it stays so where
responses are longer or shorter. Values, for terminals and for JSON."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from hpcrl.ops.search_chain import Scorer
from hpcrl.ops.search_problem import Found, Problem, Score
from hpcrl.placement.candidate import Candidate
from hpcrl.placement.layouts import mesh_text
from hpcrl.placement.options import Choices, Costs, choices_of
from hpcrl.placement.searching import OWN, Searched

TELLING = 0.05
"""A change of less than this share of the whole gain is not told."""
ALIKE = 0.01
"""Steps that differ by a smaller share take the same time."""
FACTORS = (0.7, 1.3)
"""By which responses are made shorter and longer."""


class CallTold(msgspec.Struct, frozen=True):
    """A call under a plan."""

    call: str
    layout: str
    mesh: str
    micro_batch_tokens: int
    seconds: float
    moved_s: float
    """What its parameters take from their home, before it."""
    bytes_per_worker: int
    """Of its model and of the call, on the fullest of its workers."""
    released: bool
    """Whether its model's parameters are away between calls."""


class PlanTold(msgspec.Struct, frozen=True):
    """A plan, and what is expected of it."""

    name: str
    step_s: float
    idle: float
    """The share of workers' time in which they do nothing."""
    excess_bytes: int
    """How much more memory its workers need than they have, together; 0: it fits."""
    calls: tuple[CallTold, ...]
    simulated_s: float | None = None
    """The same by a simulation with the master's own code; None where there was none."""

    @property
    def fits(self) -> bool:
        return self.excess_bytes == 0


class Reason(msgspec.Struct, frozen=True):
    """A change that makes the best plan faster than another."""

    call: str
    now: str
    before: str
    share: float
    """Of all that changes give, each alone."""


class Sensitivity(msgspec.Struct, frozen=True):
    """The same where responses have other lengths."""

    factor: float
    best_s: float
    against_s: float | None
    fastest: str
    """Which of the plans told of is then the fastest of those that fit."""


class SearchTold(msgspec.Struct, frozen=True):
    workers: int
    capacity: int
    """Bytes that each of them has."""
    rates: str
    """Where the numbers of device and links come from."""
    proposals: int
    is_optimal: bool
    plans: tuple[PlanTold, ...]
    """The best first."""
    others: tuple[PlanTold, ...]
    """What the settings say, and what chains began with."""
    against: str
    """The one of `others` that the best is compared with; empty where none fits."""
    reasons: tuple[Reason, ...]
    sensitivities: tuple[Sensitivity, ...]
    notices: tuple[str, ...]


class OnNumber(msgspec.Struct, frozen=True):
    """What was found on a number of nodes."""

    nodes: int
    found: SearchTold


class RangeTold(msgspec.Struct, frozen=True):
    """The same of each number of nodes that a run may have."""

    nodes: str
    numbers: tuple[OnNumber, ...]


def told(
    searched: Searched,
    experiment: Any,
    rates: str,
    notices: Sequence[str],
    under: Callable[[float], Costs],
) -> SearchTold:
    """All of it. `under` gives the costs where responses are so many times as long."""
    choices = searched.choices
    plans = [_simulated(searched, it, str(number)) for number, it in enumerate(searched.best, 1)]
    others = {name: _simulated(searched, it, name) for name, it in searched.starts.items()}
    best = searched.best[0]
    against = _against(searched)
    reasons = tuple(_reasons(choices, best, searched.starts[against])) if against else ()
    return SearchTold(
        workers=experiment.cluster.most_nodes * experiment.cluster.workers_per_node,
        capacity=choices.problem.capacity,
        rates=rates,
        proposals=searched.proposals,
        is_optimal=searched.is_optimal,
        plans=tuple(plans),
        others=tuple(others.values()),
        against=against,
        reasons=reasons,
        sensitivities=tuple(_sensitivities(searched, experiment, against, under)),
        notices=tuple(notices),
    )


def _simulated(searched: Searched, found: Found, name: str) -> PlanTold:
    told = plan_told(searched.choices, found, name)
    return msgspec.structs.replace(told, simulated_s=searched.simulated_s.get(found.plan))


def _against(searched: Searched) -> str:
    """The settings, if they fit, else the best of what chains began with."""
    fitting = {name: found for name, found in searched.starts.items() if not found.score.excess}
    if OWN in fitting or not fitting:
        return OWN if fitting else ""
    return min(fitting, key=lambda name: fitting[name].score)


def plan_told(choices: Choices, found: Found, name: str) -> PlanTold:
    """What is expected of a plan of these choices."""
    problem = choices.problem
    spans = Scorer(problem).spans(found.plan)
    begun, ended = (max(it.end for it in spans if it.step == step) for step in (problem.first, problem.last))
    busy = sum(
        (min(span.end, ended) - max(span.begun, begun)) * len(span.ranks)
        for span in spans
        if span.end > begun and span.begun < ended
    )
    workers = max(last for mesh in problem.meshes for _, last in mesh.ranges)
    moved = {span.call: span.end - span.begun for span in spans if span.moves}
    calls = []
    for number, (call, ways, i) in enumerate(zip(choices.calls, choices.ways, found.plan, strict=True)):
        spot, way = ways[i].spot, ways[i]
        calls.append(
            CallTold(
                call.name,
                spot.place.layout.short,
                mesh_text(spot.place.ranks),
                spot.micro_batch_tokens,
                way.nanoseconds / 1e9,
                moved.get(number, 0) / 1e9,
                way.most,
                way.is_released and spot.between == "host",
            )
        )
    whole = (ended - begun) * workers
    return PlanTold(
        name,
        step_s(problem, found.score),
        1 - busy / whole if whole else 0.0,
        found.score.excess,
        tuple(calls),
    )


def step_s(problem: Problem, score: Score) -> float:
    """Seconds of a step of a run that goes on and on."""
    return score.nanoseconds / problem.measured / 1e9


def _reasons(choices: Choices, best: Found, other: Found) -> Iterator[Reason]:
    """What would be lost by making one call as the other plan does, of all calls of which something would."""
    score, lost = Scorer(choices.problem), {}
    for number, i in enumerate(other.plan):
        if i != best.plan[number]:
            back = (*best.plan[:number], i, *best.plan[number + 1 :])
            found = score(back)
            lost[number] = max(0, found.nanoseconds - best.score.nanoseconds) if not found.excess else 0
    whole = sum(lost.values())
    for number in sorted(lost, key=lambda it: -lost[it]):
        if whole and lost[number] / whole >= TELLING:
            spots = [choices.ways[number][plan[number]].spot for plan in (best.plan, other.plan)]
            now, before = (f"{it.place.layout.short} on {mesh_text(it.place.ranks)}" for it in spots)
            if now == before:
                now, before = (f"micro-batches of {it.micro_batch_tokens} tokens" for it in spots)
            if now == before:
                now, before = ("waiting in the host's memory" if it.between else "kept there" for it in spots)
            yield Reason(choices.calls[number].name, now, before, lost[number] / whole)


def _sensitivities(
    searched: Searched, experiment: Any, against: str, under: Callable[[float], Costs]
) -> Iterator[Sensitivity]:
    named: dict[str, Candidate] = {
        str(number): searched.candidate(found) for number, found in enumerate(searched.best, 1)
    }
    if against:
        named[against] = searched.choices.candidate(searched.starts[against].plan)
    for factor in FACTORS:
        costs = under(factor)
        choices = choices_of(experiment, {}, costs, searched.choices.problem.capacity, named.values())
        score = Scorer(choices.problem)
        scores = {name: score(plan) for name, it in named.items() if (plan := choices.plan_of(it)) is not None}
        steps = {name: step_s(choices.problem, found) for name, found in scores.items()}
        fastest = min(scores, key=lambda name: scores[name])
        if scores[fastest].excess == scores["1"].excess and steps[fastest] > (1 - ALIKE) * steps["1"]:
            fastest = "1"
        yield Sensitivity(factor, steps["1"], steps.get(against), fastest)

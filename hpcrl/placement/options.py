"""Where and how each call of a run may be made: what the search chooses from, as numbers and as places."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from hpcrl.config.model import ModelConfig, models_of, shared_with
from hpcrl.dataflow.graph import MFC, topological_order
from hpcrl.dataflow.units import window
from hpcrl.families.config import DecoderConfig
from hpcrl.ops.search_problem import After, Call, Mesh, Option, Problem, Stage
from hpcrl.placement.allocate import axes_for, pieces_of
from hpcrl.placement.candidate import Candidate, Spot, candidate_of
from hpcrl.placement.layouts import Ranks
from hpcrl.placement.meshes import Grid, grids_of, layouts_on, near
from hpcrl.placement.placing import Placed, leaders
from hpcrl.placement.stage_memory import Work
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.recipes.segments import segments_of

FACTORS = (0.25, 1.0, 4.0)
"""Of a role's micro_batch_tokens, what calls that do not generate may have."""
PLACES = 4
"""The fastest of a role on each mesh; besides, the one that needs least memory, and those that somebody gives."""


class Costs(Protocol):
    """What calls and moves last, and what they need of memory. Fulfilled by `costs.CostModel`."""

    def call_nanoseconds(self, call: MFC, place: Placed, tokens: int = 0) -> int:
        """Of all parts of a call, from its first request to its last reply; `tokens` of a micro-batch at most."""
        ...

    def stages(self, call: MFC, place: Placed, tokens: int = 0) -> tuple[Stage, ...]:
        """Bytes on each worker of a stage of the model: as long as it is there, and while the call is made."""
        ...

    def moves(self, role: str, homes: Sequence[Placed], places: Sequence[Placed]) -> np.ndarray:
        """int64 [H, P]: nanoseconds that bringing a role's parameters from a home to another place lasts."""
        ...

    def release_nanoseconds(self, role: str, place: Placed) -> int:
        """Until parameters are in the host's memory, or back from there."""
        ...

    def waiting_nanoseconds(self, role: str, work: Work, place: Placed) -> int:
        """What a call, or a move, at the home of a role that changes lasts longer for what of it waits on the host."""
        ...


class Way(NamedTuple):
    """How a call may be made, and what it costs."""

    spot: Spot
    nanoseconds: int
    stages: tuple[Stage, ...]
    is_released: bool

    @property
    def lasting(self) -> int:
        return max(stage.lasting + stage.away for stage in self.stages)

    @property
    def most(self) -> int:
        return max(stage.lasting + stage.away + stage.passing for stage in self.stages)

    def beats(self, other: "Way") -> bool:
        """Whether it is as good in everything. Of two that are alike, neither does."""
        mine, theirs = (self.nanoseconds, self.lasting, self.most), (other.nanoseconds, other.lasting, other.most)
        return mine != theirs and all(a <= b for a, b in zip(mine, theirs, strict=True))


@dataclass(frozen=True)
class Choices:
    """The problem that is searched over, and what its numbers mean."""

    calls: tuple[MFC, ...]
    """In the order of the problem's."""
    ways: tuple[tuple[Way, ...], ...]
    """Of each call, in the order of its options."""
    problem: Problem
    fixed: Candidate
    """What the settings say of everything that is not searched over."""
    evaluations: Mapping[str, str]
    """Call of an evaluation → the call that it goes with."""

    def plan_of(self, candidate: Candidate) -> tuple[int, ...] | None:
        """The option of each call, as a candidate has it; None where something of it is no option."""
        found = []
        for call, ways in zip(self.calls, self.ways, strict=True):
            spot = candidate.at(call.name, call.role)
            fits = [i for i, way in enumerate(ways) if _alike(way.spot, spot)]
            if not fits:
                return None
            found.append(min(fits, key=lambda i: ways[i].spot.between != spot.between))
        return tuple(found)

    def candidate(self, plan: Sequence[int]) -> Candidate:
        """What a plan says."""
        spots = {call.name: ways[i].spot for call, ways, i in zip(self.calls, self.ways, plan, strict=True)}
        homes = dict(self.fixed.homes)
        for call, of in zip(self.calls, self.problem.calls, strict=True):
            if self.calls[of.home] == call:
                homes[call.role] = spots[call.name]
        away = {call.name: spots[call.name] for call in self.calls if spots[call.name] != homes[call.role]}
        away |= {name: away[first] for name, first in self.evaluations.items() if first in away}
        kept = {call: spot for call, spot in self.fixed.calls.items() if call not in spots and call not in away}
        return Candidate(homes, {**kept, **away})


def _alike(one: Spot, other: Spot) -> bool:
    return (one.place, one.micro_batch_tokens) == (other.place, other.micro_batch_tokens)


def choices_of(
    experiment: Any,
    models: Mapping[str, DecoderConfig],
    costs: Costs,
    capacity: int,
    given: Iterable[Candidate] = (),
) -> Choices:
    """All that may be chosen on the nodes of an experiment for the roles of these models, and what the `given`
    candidates say. What the settings place stays there."""
    return _Choosing(experiment, models, costs, tuple(given)).choices(capacity)


class _Choosing:
    def __init__(
        self, experiment: Any, models: Mapping[str, DecoderConfig], costs: Costs, given: tuple[Candidate, ...]
    ) -> None:
        self._experiment = experiment
        self._models = models
        self._configs = models_of(experiment)
        self._costs = costs
        self._given = given
        algorithm, cluster = algorithm_of(experiment), experiment.cluster
        graph = algorithm.graph(experiment)
        calls = {call.name: call for call in algorithm.calls(experiment)}
        order = [calls[name] for name in topological_order(graph)]
        self._edges = graph.edges
        self._ahead = window(graph)
        self._calls = tuple(call for call in order if call.dataset == "train")
        placed = {call.name: (call.name, *leaders(call, tuple(calls.values()))) for call in order}
        self._written = {name for name, names in placed.items() if not experiment.calls.keys().isdisjoint(names)}
        """Calls that the user has placed."""
        self._evaluations: dict[str, str] = {}
        """Those of evaluations that the user has not placed → the call of training that each goes with."""
        for name, names in placed.items():
            own = [it for it in names if calls[it].dataset == "eval"]
            if 0 < len(own) < len(names) and experiment.calls.keys().isdisjoint(own):
                self._evaluations[name] = names[len(own)]
        self._fixed = candidate_of(experiment, cluster.most_nodes)
        self._grids = grids_of(cluster.most_nodes, cluster.workers_per_node)
        self._pieces = pieces_of(algorithm.batch(experiment), cluster.most_nodes * cluster.workers_per_node)

    def choices(self, capacity: int) -> Choices:
        homes = self._homes()
        ways = [self._ways(number, homes[number] == number) for number in range(len(self._calls))]
        meshes = _Meshes(self._grids)
        places: dict[Placed, int] = {}
        for place in sorted(dict.fromkeys(way.spot.place for of_call in ways for way in of_call), key=meshes.order):
            places[place] = len(places)
        for of_call in ways:
            of_call.sort(key=lambda way: (meshes.number(way.spot.place.ranks), places[way.spot.place]))
        calls = tuple(self._call(number, homes, ways, meshes, places) for number in range(len(self._calls)))
        problem = Problem(calls, meshes.all, capacity, self._ahead)
        return Choices(self._calls, tuple(map(tuple, ways)), problem, self._fixed, self._evaluations)

    def _homes(self) -> list[int]:
        """Of each call the one by whose option its role's home is chosen."""
        found: dict[str, int] = {}
        for number, call in enumerate(self._calls):
            if call.role not in found or call.changes:
                found[call.role] = number
        return [found[call.role] for call in self._calls]

    def _ways(self, number: int, is_home: bool) -> list[Way]:
        call = self._calls[number]
        own = self._fixed.at(call.name, call.role)
        found = dict(self._everywhere(call, own) if self._is_free(call, is_home) else ())
        fills = own.place.layout.dp <= self._pieces
        for candidate in (self._fixed, *self._given) if fills or not found else self._given:
            spot = candidate.at(call.name, call.role)._replace(between=None)
            found.setdefault(spot, self._way(call, spot))
        ways = list(found.values())
        if is_home and not call.changes and call.role in self._configs:
            return ways + [self._released(call, way) for way in ways]
        return ways

    def _everywhere(self, call: MFC, own: Spot) -> Iterator[tuple[Spot, Way]]:
        """What is worth trying on every grid. Grids of one shape cost the same, whichever nodes they are of."""
        alike: dict[tuple[int, int], list[Way]] = {}
        for grid in self._grids:
            shape = grid.nodes, grid.slots
            if shape not in alike:
                alike[shape] = list(_worth_trying(list(self._on(grid, call, own))))
            for way in alike[shape]:
                spot = way.spot._replace(place=way.spot.place.on(way.spot.place.layout, grid.ranks))
                yield spot, way._replace(spot=spot)

    def _on(self, grid: Grid, call: MFC, own: Spot) -> Iterator[Way]:
        """On one grid: the layouts that are worth trying with the role's micro-batches, with others as well."""
        section, model = getattr(self._experiment, call.role), self._models[call.role]
        layouts = layouts_on(grid, model, axes_for(call.role, section, model))
        places = [own.place.on(layout, grid.ranks) for layout in layouts if layout.dp <= self._pieces]
        for way in _worth_trying([self._way(call, Spot(place, own.micro_batch_tokens)) for place in places]):
            yield way
            for tokens in self._tokens(call, own):
                if tokens != own.micro_batch_tokens:
                    yield self._way(call, Spot(way.spot.place, tokens))

    def _is_free(self, call: MFC, is_home: bool) -> bool:
        """Whether the settings leave it to the search where this is done."""
        if call.role not in self._models or call.name in self._written or call.blends:
            return False
        if any(other.changes == call.role and other.blends for other in self._calls):
            return False
        section = getattr(self._experiment, call.role)
        written = section.layout is not None or section.mesh is not None
        return isinstance(section, ModelConfig) and not (written and is_home)

    def _tokens(self, call: MFC, own: Spot) -> list[int]:
        if call.kind == "generate" or not own.micro_batch_tokens:
            return [own.micro_batch_tokens]
        return [max(1, int(own.micro_batch_tokens * factor)) for factor in FACTORS]

    def _way(self, call: MFC, spot: Spot) -> Way:
        is_copy = not call.changes and any(other.changes == call.role for other in self._calls)
        at = spot.place, spot.micro_batch_tokens
        if shared_with(self._experiment, call.role):
            return Way(spot, 0, (Stage(0, 0),), is_copy)
        taken = self._costs.call_nanoseconds(call, *at)
        if call.changes:
            taken += sum(self._costs.call_nanoseconds(other, *at) for other in self._riders(call.role))
            for role in filter(None, (call.role, call.blends)):
                taken += self._costs.waiting_nanoseconds(role, call.kind, spot.place)
        return Way(spot, taken, self._costs.stages(call, *at), is_copy)

    def _waiting(self, call: MFC, homes: Sequence[Placed], places: Sequence[Placed]) -> np.ndarray:
        """int64 [homes, places]: what a move lasts longer, or the call where it is at home, for what is away there."""
        moved = [self._costs.waiting_nanoseconds(call.role, "move", home) for home in homes]
        made = [self._costs.waiting_nanoseconds(call.role, call.kind, home) for home in homes]
        count = len(segments_of(call, self._experiment))
        numbers = {place: number for number, place in enumerate(homes)}
        at_home = np.array([numbers.get(place, -1) for place in places])[None] == np.arange(len(homes))[:, None]
        return np.where(at_home, count * np.array(made)[:, None], np.array(moved)[:, None])

    def _riders(self, role: str) -> list[MFC]:
        """Calls of the roles whose model this one's is: they are made where it is at home, and count with what changes
        it."""
        return [call for call in self._calls if shared_with(self._experiment, call.role) == role]

    def _released(self, call: MFC, way: Way) -> Way:
        """Parameters wait in the host's memory between its calls."""
        restores = self._costs.release_nanoseconds(call.role, way.spot.place)
        return Way(way.spot._replace(between="host"), way.nanoseconds + restores, way.stages, True)

    def _call(
        self,
        number: int,
        homes: Sequence[int],
        ways: Sequence[Sequence[Way]],
        meshes: "_Meshes",
        places: Mapping[Placed, int],
    ) -> Call:
        call, home = self._calls[number], homes[number]
        numbers = {it.name: i for i, it in enumerate(self._calls)}
        after = tuple(
            After(numbers[edge.source], edge.steps)
            for edge in self._edges
            if edge.target == call.name and edge.source in numbers
        )
        changer = self._calls[home].changes == call.role
        lag = max([1, *(it.steps for it in after if it.call == home)]) if changer and home != number else 0
        moves = None
        if lag:
            from_, to = (list(dict.fromkeys(way.spot.place for way in ways[it])) for it in (home, number))
            moves = self._costs.moves(call.role, from_, to) + self._waiting(call, from_, to)
        options = tuple(
            Option(meshes.number(at.spot.place.ranks), places[at.spot.place], at.nanoseconds, at.stages, at.is_released)
            for at in ways[number]
        )
        return Call(_numbered_roles(self._calls)[call.role], home, options, after, lag, moves)


def _numbered_roles(calls: Iterable[MFC]) -> dict[str, int]:
    return {role: number for number, role in enumerate(dict.fromkeys(call.role for call in calls))}


def _worth_trying(ways: Sequence[Way]) -> Iterator[Way]:
    """Those that no other beats, at the fastest places and at those that need least memory."""
    kept = [way for way in ways if not any(other.beats(way) for other in ways)]
    fastest = dict.fromkeys(way.spot.place for way in sorted(kept, key=lambda way: way.nanoseconds))
    smallest = [min(kept, key=size).spot.place for size in (lambda way: way.lasting, lambda way: way.most) if kept]
    places = {*list(fastest)[:PLACES], *smallest}
    yield from (way for way in kept if way.spot.place in places)


class _Meshes:
    """Numbers of workers' sets, those of the grids first."""

    def __init__(self, grids: Sequence[Grid]) -> None:
        next_to = near(grids)
        self._numbers = {grid.ranks: number for number, grid in enumerate(grids)}
        self._all = [Mesh(((grid.first, grid.last),), tuple(next_to[grid])) for grid in grids]

    @property
    def all(self) -> tuple[Mesh, ...]:
        return tuple(self._all)

    def number(self, ranks: Ranks) -> int:
        if ranks not in self._numbers:
            self._numbers[ranks] = len(self._all)
            self._all.append(Mesh(_ranges(ranks)))
        return self._numbers[ranks]

    def order(self, place: Placed) -> tuple[int, Any]:
        return self.number(place.ranks), (str(place.layout), place.backend, place.python)


def _ranges(ranks: Ranks) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if found and found[-1][1] == rank:
            found[-1] = (found[-1][0], rank + 1)
        else:
            found.append((rank, rank + 1))
    return tuple(found)

"""How long parameters take from their home to a copy: by what the planner has workers send, and over which links.

`nanoseconds` adds up the planner's own transfers. `matrix`, for thousands of places, reckons with shares instead: it
takes every matrix to be cut into equal runs, and turns to be taken evenly. Where models have many layers both agree to
a few per cent. Shapes: C cells of a model that the same ranks have; R workers, N nodes.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import lcm
from typing import Any, NamedTuple

import numpy as np

from hpcrl.families.config import DecoderConfig
from hpcrl.placement.abilities import cut_by, server_of
from hpcrl.placement.holdings import Holding, holdings, part_holdings, served_holdings
from hpcrl.placement.layouts import Layout
from hpcrl.placement.memory import STAGED_BYTES
from hpcrl.placement.moving import Transfer, moves
from hpcrl.placement.placing import Placed
from hpcrl.placement.rates import SECOND, Link, Rates
from hpcrl.placement.shards import stage_parameters

KINDS = 2**31
"""More than there are."""
PACKED = 2
"""How often a byte that is sent or received is copied besides."""


class _Traffic(NamedTuple):
    """Bytes that workers send and receive at a time, [R] each."""

    near_sent: np.ndarray
    near_received: np.ndarray
    far_sent: np.ndarray
    far_received: np.ndarray


@dataclass(frozen=True, eq=False)
class MoveCosts:
    """Of one model; `size`: bytes of a number, `slots`: workers of a node. Remembers what it has reckoned."""

    config: DecoderConfig
    size: int
    slots: int
    rates: Rates
    _made: dict[Any, Any] = field(default_factory=dict)
    _kinds: dict[Any, int] = field(default_factory=dict)
    """What the workers of a node may have, each with a number."""
    _cells: dict[tuple[int, int, int, int], "_Cells"] = field(default_factory=dict)
    """By the sizes of tp and pp of a home and of a place."""

    def nanoseconds(self, home: Placed, place: Placed) -> int:
        """By the planner's transfers."""
        if (home.layout, home.ranks, home.backend) == (place.layout, place.ranks, place.backend):
            return 0
        world = max(*home.ranks, *place.ranks) + 1
        nodes = tuple(rank // self.slots for rank in range(world))
        sides = [self._held(it, world) for it in (home, place)]
        views = [moves(*sides, nodes, rank) for rank in range(world)]
        copied = max(view.copied[0].numel for view in views) * self.size
        rounds = []
        for number in (0, 1):
            sums = [
                [
                    self._by_distance(side, nodes, rank)
                    for side in (view.rounds[number].sends, view.rounds[number].receives)
                ]
                for rank, view in enumerate(views)
            ]
            table = np.array(sums, np.float64).reshape(world, 4).T * self.size
            rounds.append(_Traffic(table[0], table[2], table[1], table[3]))
        return round(self._lasting(rounds, copied))

    def matrix(self, homes: Sequence[Placed], places: Sequence[Placed]) -> np.ndarray:
        """int64 [homes, places]. Pairs that only nodes' order distinguishes are reckoned once."""
        nodes = 1 + max(max(place.ranks) for place in (*homes, *places)) // self.slots
        of_homes, of_places = ([self._side(it, nodes) for it in of] for of in (homes, places))
        own_PN = np.array([side.kind_N for side in of_places])
        found = np.zeros((len(homes), len(places)), np.int64)
        for row, home in enumerate(of_homes):
            pair_PN = home.kind_N * KINDS + own_PN
            sorted_PN = np.sort(pair_PN, axis=1)
            _, firsts, of_pair = np.unique(sorted_PN, axis=0, return_index=True, return_inverse=True)
            reckoned = [self._once(sorted_PN[i].tobytes(), home, of_places[i], pair_PN[i]) for i in firsts.tolist()]
            found[row] = np.array(reckoned)[of_pair.reshape(-1)]
        return found

    def _once(self, pairs: bytes, home: "_Side", place: "_Side", pair_N: np.ndarray) -> int:
        if pairs not in self._made:
            self._made[pairs] = 0 if home.is_as(place) else self._nearly(home, place, pair_N)
        found: int = self._made[pairs]
        return found

    def _side(self, place: Placed, nodes: int) -> "_Side":
        """Of a node, what its workers have there gets a number, the same wherever they have the same."""
        layout, index = _layout(place), np.arange(len(_holders(place)))
        holders = list(_holders(place))
        stage_W, cut_W = (np.full(nodes * self.slots, -1) for _ in range(2))
        stage_W[holders], cut_W[holders] = index // (layout.tp * layout.dp), index % layout.tp
        has_NS = np.stack([stage_W, cut_W]).reshape(2, nodes, self.slots).transpose(1, 2, 0)
        kinds = self._kinds
        of_nodes = [kinds.setdefault((place.layout, place.backend, it.tobytes()), len(kinds)) for it in has_NS]
        return _Side(layout, stage_W, cut_W, np.array(of_nodes))

    def _nearly(self, home: "_Side", place: "_Side", pair_N: np.ndarray) -> int:
        """Of nodes that have the same, one is reckoned with, as many times as there are."""
        _, node_N, times_N = np.unique(pair_N, return_index=True, return_counts=True)
        shape = home.layout.tp, home.layout.pp, place.layout.tp, place.layout.pp
        if shape not in self._cells:
            groups = _groups(self.config, home.layout.pp, place.layout.pp)
            self._cells[shape] = _Cells.of(groups, home.layout, place.layout)
        cells = self._cells[shape]
        workers = (node_N[:, None] * self.slots + np.arange(self.slots)).reshape(-1)
        source, target = (cells.held(number, side, workers) for number, side in enumerate((home, place)))
        rounds, copied = _shared_out(cells.numel_C, source, target, times_N)
        scaled = [_Traffic(*(each * self.size for each in traffic)) for traffic in rounds]
        return round(self._lasting(scaled, copied * self.size))

    def _lasting(self, rounds: Iterable[_Traffic], copied: float) -> float:
        """Rounds follow each other; in each, a worker sends and receives at once, near and far after another."""
        found = PACKED * copied / self.rates.bytes_per_s * SECOND
        for of in rounds:
            near, far = np.maximum(of.near_sent, of.near_received), np.maximum(of.far_sent, of.far_received)
            lasting = _over(self.rates.near.send, near) + _over(self.rates.far.send, far)
            packing = PACKED * (near + far) / self.rates.bytes_per_s * SECOND
            found += float((lasting + packing).max(initial=0.0))
        return found

    def _by_distance(self, transfers: Iterable[Transfer], nodes: Sequence[int], rank: int) -> tuple[int, int]:
        """Numbers to or from workers of the own node, and of others."""
        sums = [0, 0]
        for it in transfers:
            sums[nodes[it.peer] != nodes[rank]] += it.rectangles.numel
        return sums[0], sums[1]

    def _held(self, place: Placed, world: int) -> tuple[Holding, ...]:
        key = ("held", place.layout, place.ranks, place.backend, world)
        if key not in self._made:
            self._made[key] = self._holding(place, world)
        found: tuple[Holding, ...] = self._made[key]
        return found

    def _holding(self, place: Placed, world: int) -> tuple[Holding, ...]:
        by = cut_by(place.backend) if place.backend and place.layout.dp > 1 else ""
        if by:
            return part_holdings(self.config, place.ranks, world, by)
        if place.backend and server_of(place.backend) is not None:
            return served_holdings(self.config, place.layout, place.ranks, world)
        return holdings(self.config, place.layout, place.ranks, world)


def _over(link: Link, sizes: np.ndarray) -> np.ndarray:
    messages = np.ceil(sizes / STAGED_BYTES)
    return link.latency_ns * messages + sizes / link.bytes_per_s * SECOND


@dataclass(frozen=True, eq=False)
class _Side:
    """A place, by W workers of whole nodes: which stage and which cut of its matrices each has, -1 for none."""

    layout: Layout
    """By which matrices are cut there."""
    stage_W: np.ndarray
    cut_W: np.ndarray
    kind_N: np.ndarray
    """The number of what each node has."""

    def is_as(self, other: "_Side") -> bool:
        return bool((self.kind_N == other.kind_N).all())


class _Cells(NamedTuple):
    """Runs of a model's numbers, each wholly with a worker or not at all."""

    numel_C: np.ndarray
    member_CP: tuple[np.ndarray, np.ndarray]
    """Of both sides, whether a stage has it; of no stage, last, nothing."""
    cut_C: tuple[np.ndarray, np.ndarray]
    """Of both sides, whose tensor rank it is."""
    is_whole_C: np.ndarray

    @staticmethod
    def of(groups: "Counter[tuple[_Stages, bool]]", home: Layout, place: Layout) -> "_Cells":
        runs = lcm(home.tp, place.tp)
        counts = np.array([runs if is_cut else 1 for _, is_cut in groups])
        group_C = np.repeat(np.arange(len(groups)), counts)
        run_C = np.arange(len(group_C)) - np.repeat(np.cumsum(counts) - counts, counts)
        members, cuts = [], []
        for side, layout in enumerate((home, place)):
            member = np.array([[stage in stages[side] for stage in range(layout.pp)] + [False] for stages, _ in groups])
            members.append(member[group_C])
            cuts.append(run_C // (runs // layout.tp))
        numel_C = (np.array(list(groups.values())) / counts)[group_C]
        return _Cells(numel_C, (members[0], members[1]), (cuts[0], cuts[1]), counts[group_C] == 1)

    def held(self, number: int, side: _Side, workers: np.ndarray) -> np.ndarray:
        """bool [C, R]: what each of these workers has, of the home (0) or of the place (1)."""
        is_own = (self.cut_C[number][:, None] == side.cut_W[workers]) | self.is_whole_C[:, None]
        held: np.ndarray = self.member_CP[number][:, side.stage_W[workers]] & is_own
        return held


def _layout(place: Placed) -> Layout:
    """As which matrices are cut there: by a backend that cuts them over data, as if over tensor ranks; for a server,
    not at all."""
    if place.backend and place.layout.dp > 1 and cut_by(place.backend):
        return Layout(tp=place.layout.dp)
    if place.backend and server_of(place.backend) is not None:
        return Layout(dp=place.layout.dp)
    return place.layout


def _holders(place: Placed) -> Sequence[int]:
    served = place.backend and server_of(place.backend) is not None
    return place.ranks[:: place.layout.tp] if served else place.ranks


_Stages = tuple[frozenset[int], frozenset[int]]


@lru_cache(maxsize=1024)
def _groups(config: DecoderConfig, home: int, place: int) -> Counter[tuple[_Stages, bool]]:
    """How many numbers the same stages of both have, and whether they are cut over tensor ranks."""
    found: dict[str, list[set[int]]] = {}
    numel, is_cut = {}, {}
    for side, pp in enumerate((home, place)):
        for stage, parameters in enumerate(stage_parameters(config, pp)):
            for it in parameters:
                found.setdefault(it.name, [set(), set()])[side].add(stage)
                numel[it.name], is_cut[it.name] = it.numel, it.tp_dim is not None
    sums: Counter[tuple[_Stages, bool]] = Counter()
    for name, (one, other) in found.items():
        sums[(frozenset(one), frozenset(other)), is_cut[name]] += numel[name]
    return sums


def _shared_out(
    numel_C: np.ndarray, source: np.ndarray, target: np.ndarray, times_N: np.ndarray
) -> tuple[list[_Traffic], float]:
    """Both rounds, and what a worker copies at most: who has something, or wants it, has an even share of the work.

    bool [C, R]: who has something, and who wants it, of N nodes with as many workers each, each there so many times.
    """
    lack = target & ~source
    had_CN, lack_CN = (
        it.reshape(len(numel_C), len(times_N), -1).sum(axis=2, dtype=np.float64) for it in (source, lack)
    )
    crosses_CN = (had_CN == 0) & (lack_CN > 0)
    near_CN = np.where(had_CN > 0, lack_CN, 0.0)
    first_CN, second_CN = crosses_CN / np.maximum(1, lack_CN), crosses_CN * (1 - 1 / np.maximum(1, lack_CN))
    node_R = np.repeat(np.arange(len(times_N)), source.shape[1] // len(times_N))
    received = numel_C @ (lack * (had_CN > 0)[:, node_R])
    sent = numel_C @ (source * (near_CN / np.maximum(1, had_CN))[:, node_R])
    far_received = numel_C @ (lack * first_CN[:, node_R])
    far_sent = numel_C @ (source * ((crosses_CN @ times_N) / np.maximum(1, had_CN @ times_N))[:, None])
    spread = numel_C @ (lack * second_CN[:, node_R])
    none = np.zeros(len(node_R))
    copied = float((numel_C @ (source & target)).max(initial=0.0))
    return [_Traffic(sent, received, far_sent, far_received), _Traffic(spread, spread, none, none)], copied

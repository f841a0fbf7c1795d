"""How long parameters take from their home to a copy: by what the planner has workers send, and over which links.

`nanoseconds` adds up the planner's own transfers. `matrix`, for thousands of places, reckons with shares instead: it
takes every matrix to be cut into equal runs, and turns to be taken evenly. Where models have many layers both agree to
a few per cent. Shapes: C cells of a model that the same ranks have; R workers, N nodes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import lcm
from typing import Any, NamedTuple

import numpy as np

from hpcrl.families.config import DecoderConfig
from hpcrl.placement.abilities import cut_by, server_of
from hpcrl.placement.holdings import Holding, holdings, part_holdings, served_holdings
from hpcrl.placement.layouts import Layout
from hpcrl.placement.moving import ALONE_BYTES, Round, moves
from hpcrl.placement.pass_memory import STAGED_BYTES
from hpcrl.placement.placing import Placed
from hpcrl.placement.rates import SECOND, Links, Rates
from hpcrl.placement.shards import stage_parameters

KINDS = 2**31
"""More than there are."""
AT_ONCE = 2**17
"""Numbers of an array with which pairs of places are reckoned together."""


class _Traffic(NamedTuple):
    """Bytes that workers send and receive at a time, [R] or [B, R] each."""

    near_sent: np.ndarray
    near_received: np.ndarray
    far_sent: np.ndarray
    far_received: np.ndarray
    packed: np.ndarray
    """Of them, what is copied to be sent, or once received."""


@dataclass(frozen=True, eq=False)
class MoveCosts:
    """Of one model; `size`: bytes of a number, `slots`: workers of a node. Remembers what it has reckoned."""

    config: DecoderConfig
    size: int
    slots: int
    rates: Rates
    _made: dict[Any, Any] = field(default_factory=dict)
    _kinds: dict[tuple[Layout, str], dict[bytes, int]] = field(default_factory=dict)
    """What the workers of a node may have, each with a number."""
    _numbered: list[np.ndarray] = field(default_factory=list)
    """By that number [2, S], which stage and which cut of its matrices each worker of the node has, -1 for none."""
    _sides: dict[tuple[Placed, int], "_Side"] = field(default_factory=dict)
    _cells: dict[tuple[int, ...], "_Cells"] = field(default_factory=dict)

    def nanoseconds(self, home: Placed, place: Placed) -> int:
        """By the planner's transfers."""
        if (home.layout, home.ranks, home.backend) == (place.layout, place.ranks, place.backend):
            return 0
        world = max(*home.ranks, *place.ranks) + 1
        nodes = tuple(rank // self.slots for rank in range(world))
        sides = [self._held(it, world) for it in (home, place)]
        views = [moves(*sides, nodes, rank) for rank in range(world)]
        copied = np.array([view.copied[0].numel for view in views], np.float64) * self.size
        rounds = []
        for of in zip(*(view.rounds for view in views), strict=True):
            sums = [self._sums(it, nodes, rank) for rank, it in enumerate(of)]
            rounds.append(_Traffic(*np.array(sums, np.float64).T * self.size))
        return round(float(self._lasting(rounds, copied)))

    def matrix(self, homes: Sequence[Placed], places: Sequence[Placed]) -> np.ndarray:
        """int64 [homes, places]. Pairs that only nodes' order distinguishes are reckoned once."""
        nodes = 1 + max(max(place.ranks) for place in (*homes, *places)) // self.slots
        of_homes, of_places = (_Sides.of([self._side(it, nodes) for it in of]) for of in (homes, places))
        names_HP = np.stack([_names(kind_N * KINDS + of_places.kind_XN) for kind_N in of_homes.kind_XN])
        names, firsts, of_pair = np.unique(names_HP, return_index=True, return_inverse=True)
        new = np.array([i for i, name in enumerate(names.tolist()) if name not in self._made], np.int64)
        lasting = self._reckoned(of_homes, of_places, *np.divmod(firsts[new], len(places)))
        self._made.update(zip(names[new].tolist(), lasting.tolist(), strict=True))
        return np.array([self._made[name] for name in names.tolist()], np.int64)[of_pair].reshape(names_HP.shape)

    def _side(self, place: Placed, nodes: int) -> "_Side":
        if (place, nodes) not in self._sides:
            self._sides[place, nodes] = self._side_of(place, nodes)
        return self._sides[place, nodes]

    def _side_of(self, place: Placed, nodes: int) -> "_Side":
        """Of a node, what its workers have there gets a number, the same wherever they have the same."""
        layout, holders = _layout(place), np.array(_holders(place))
        index, has_2W = np.arange(len(holders)), np.full((2, nodes * self.slots), -1)
        has_2W[:, holders] = index // (layout.tp * layout.dp), index % layout.tp
        has_N2S = np.ascontiguousarray(has_2W.reshape(2, nodes, self.slots).swapaxes(0, 1))
        kinds = self._kinds.setdefault((place.layout, place.backend), {})
        for has_2S in has_N2S:
            if has_2S.tobytes() not in kinds:
                kinds[has_2S.tobytes()] = len(self._numbered)
                self._numbered.append(has_2S)
        return _Side(layout, np.array([kinds[has_2S.tobytes()] for has_2S in has_N2S]))

    def _reckoned(self, homes: "_Sides", places: "_Sides", home_U: np.ndarray, place_U: np.ndarray) -> np.ndarray:
        """Of these pairs, int64 [U]: those that cut a model alike at once."""
        found = np.zeros(len(home_U), np.int64)
        pair_UN = np.sort(homes.kind_XN[home_U] * KINDS + places.kind_XN[place_U], axis=1)
        is_first_UN = np.diff(pair_UN, axis=1, prepend=-1) != 0
        moves_U = np.flatnonzero((homes.kind_XN[home_U] != places.kind_XN[place_U]).any(axis=1))
        counts_U1 = is_first_UN.sum(axis=1, keepdims=True)
        alike_UL = np.concatenate([homes.shape_XL[home_U], places.shape_XL[place_U], counts_U1], axis=1)[moves_U]
        for alike, members in _grouped(alike_UL):
            cells, count, among = self._cells_of(tuple(alike[:4])), alike[4], moves_U[members]
            pair_AN = pair_UN[among][is_first_UN[among]].reshape(-1, count)
            times_AN = np.diff(np.nonzero(is_first_UN[among])[1].reshape(-1, count), axis=1, append=pair_UN.shape[1])
            pairs_Q, node_AN = np.unique(pair_AN, return_inverse=True)
            nodes = _Nodes.of(
                cells, *(self._held_by(cells, side, of) for side, of in enumerate(divmod(pairs_Q, KINDS)))
            )
            each = max(1, AT_ONCE // (len(cells.numel_C) * count * self.slots))
            for some in np.split(np.arange(len(among)), range(each, len(among), each)):
                rounds, copied_BR = nodes.together(cells, node_AN.reshape(-1, count)[some], times_AN[some])
                found[among[some]] = self._nearly(rounds, copied_BR)
        return found

    def _held_by(self, cells: "_Cells", side: int, kind_Q: np.ndarray) -> np.ndarray:
        """bool [Q, C, S]: what workers of nodes of these kinds have, of the home (0) or of the place (1)."""
        has_2QS = np.stack([self._numbered[kind] for kind in kind_Q.tolist()], axis=1)
        return cells.held(side, *has_2QS)

    def _nearly(self, rounds: "Sequence[_Traffic]", copied_BR: np.ndarray) -> np.ndarray:
        """Of nodes that have the same, one is reckoned with, as many times as there are."""
        scaled = [_Traffic(*(each * self.size for each in traffic)) for traffic in rounds]
        return np.rint(self._lasting(scaled, copied_BR * self.size)).astype(np.int64)

    def _cells_of(self, shape: tuple[int, ...]) -> "_Cells":
        """By the sizes of tp and pp of a home and of a place."""
        if shape not in self._cells:
            home, place = Layout(tp=shape[0], pp=shape[1]), Layout(tp=shape[2], pp=shape[3])
            self._cells[shape] = _Cells.of(_groups(self.config, home.pp, place.pp), home, place)
        return self._cells[shape]

    def _lasting(self, rounds: Iterable[_Traffic], copied: Any) -> Any:
        """Rounds follow each other; in each, a worker sends and receives at once, near and far after another. It copies
        what is packed, and in the first round what it has already."""
        found = 0.0
        for of, own in zip(rounds, (copied, 0.0), strict=True):
            near, far = self.rates.near, self.rates.far
            lasting = _over(near, of.near_sent, of.near_received) + _over(far, of.far_sent, of.far_received)
            found = found + (lasting + self.rates.copying(of.packed + own)).max(axis=-1, initial=0.0)
        return found

    def _sums(self, of: Round, nodes: Sequence[int], rank: int) -> list[int]:
        """Of numbers, as a `_Traffic` has them."""
        found = [
            sum(it.rectangles.numel for it in side if (nodes[it.peer] == nodes[rank]) == is_near)
            for is_near in (True, False)
            for side in (of.sends, of.receives)
        ]
        alone = max(1, ALONE_BYTES // self.size)
        return [*found, sum(it.packed(alone) for it in (*of.sends, *of.receives))]

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


def _over(links: Links, sent: np.ndarray, received: np.ndarray) -> np.ndarray:
    """What goes both ways at once, and the rest one way."""
    most, link = np.maximum(sent, received), links.send
    latencies = link.latency_ns * np.ceil(most / STAGED_BYTES)
    if links.alone is None:
        return latencies + most / link.bytes_per_s * SECOND
    both = np.minimum(sent, received)
    return latencies + (both / link.bytes_per_s + (most - both) / links.alone.bytes_per_s) * SECOND


class _Side(NamedTuple):
    """A place, by workers of whole nodes."""

    layout: Layout
    """By which matrices are cut there."""
    kind_N: np.ndarray
    """The number of what each node has."""


class _Sides(NamedTuple):
    """X of them."""

    shape_XL: np.ndarray
    """tp and pp."""
    kind_XN: np.ndarray

    @staticmethod
    def of(sides: Sequence[_Side]) -> "_Sides":
        shapes = np.array([(side.layout.tp, side.layout.pp) for side in sides])
        return _Sides(shapes, np.stack([side.kind_N for side in sides]))


class _Cells(NamedTuple):
    """Runs of a model's numbers, each wholly with a worker or not at all."""

    numel_C: np.ndarray
    member_CP: tuple[np.ndarray, np.ndarray]
    """Of both sides, whether a stage has it; of no stage, last, nothing."""
    cut_C: tuple[np.ndarray, np.ndarray]
    """Of both sides, whose tensor rank it is."""
    is_whole_C: np.ndarray
    weights_2C: np.ndarray
    """Its numbers, and those of them that lie in many short runs: what tensor ranks have of columns, which are several
    matrices'."""

    @staticmethod
    def of(groups: "Mapping[tuple[_Stages, bool], _Numbers]", home: Layout, place: Layout) -> "_Cells":
        runs = lcm(home.tp, place.tp)
        counts = np.array([runs if is_cut else 1 for _, is_cut in groups])
        group_C = np.repeat(np.arange(len(groups)), counts)
        run_C = np.arange(len(group_C)) - np.repeat(np.cumsum(counts) - counts, counts)
        members, cuts = [], []
        for side, layout in enumerate((home, place)):
            member = np.array([[stage in stages[side] for stage in range(layout.pp)] + [False] for stages, _ in groups])
            members.append(member[group_C])
            cuts.append(run_C // (runs // layout.tp))
        numel_C, columns_C = ((np.array(of) / counts)[group_C] for of in zip(*groups.values(), strict=True))
        weights_2C = np.stack([numel_C, columns_C * (runs > 1)])
        return _Cells(numel_C, (members[0], members[1]), (cuts[0], cuts[1]), counts[group_C] == 1, weights_2C)

    def held(self, number: int, stage_QS: np.ndarray, cut_QS: np.ndarray) -> np.ndarray:
        """bool [Q, C, S]: what workers with these stages and cuts have, of the home (0) or of the place (1)."""
        is_own = (self.cut_C[number][:, None] == cut_QS[:, None]) | self.is_whole_C[:, None]
        return np.ascontiguousarray(self.member_CP[number][:, stage_QS].swapaxes(0, 1)) & is_own


class _Nodes(NamedTuple):
    """Q nodes of S workers, by what these have and want: each has an even share of the work, of those who have
    something and of those who want it."""

    has_QCS: np.ndarray
    """Who has what, as 1 and 0."""
    had_QC: np.ndarray
    crosses_QC: np.ndarray
    """What a node wants and has not, as 1 and 0."""
    near_Q2S: np.ndarray
    """Of numbers, and of packed ones, what workers send within their node in the first round."""
    wanted_Q2S: np.ndarray
    far_Q2S: np.ndarray
    """What they receive from others, to share it in the second round."""
    spread_Q2S: np.ndarray
    copied_QS: np.ndarray

    @staticmethod
    def of(cells: _Cells, source: np.ndarray, target: np.ndarray) -> "_Nodes":
        """bool [Q, C, S]: who has something, and who wants it."""
        lack = target & ~source
        had_QC, lack_QC = (it.sum(axis=2, dtype=np.float64) for it in (source, lack))
        crosses_QC = (had_QC == 0) & (lack_QC > 0)
        near_QC = np.where(had_QC > 0, lack_QC, 0.0) / np.maximum(1, had_QC)
        first_QC = crosses_QC / np.maximum(1, lack_QC)
        second_QC = crosses_QC * (1 - 1 / np.maximum(1, lack_QC))
        shares = (source, near_QC), (lack, had_QC > 0), (lack, first_QC), (lack, second_QC)
        near, wanted, far, spread = (
            cells.weights_2C @ (who * share[:, :, None]).astype(np.float64) for who, share in shares
        )
        copied_QS = cells.numel_C @ (source & target).astype(np.float64)
        has_QCS, crosses = source.astype(np.float64), crosses_QC.astype(np.float64)
        return _Nodes(has_QCS, had_QC, crosses, near, wanted, far, spread, copied_QS)

    def together(self, cells: _Cells, node_BN: np.ndarray, times_BN: np.ndarray) -> tuple[list[_Traffic], np.ndarray]:
        """Both rounds, and what each worker copies, of B pairs of places with these nodes, each so many times."""
        times_B1N = times_BN[:, None, :].astype(np.float64)
        crosses_BC, had_BC = ((times_B1N @ of[node_BN])[:, 0] for of in (self.crosses_QC, self.had_QC))
        share_BC = crosses_BC / np.maximum(1, had_BC)
        sent_BN2S = cells.weights_2C @ (self.has_QCS[node_BN] * share_BC[:, None, :, None])
        of_nodes = (self.near_Q2S, self.wanted_Q2S, self.far_Q2S, self.spread_Q2S)
        near, wanted, far, spread = (_of_workers(of[node_BN]) for of in of_nodes)
        sent = _of_workers(sent_BN2S)
        none = np.zeros_like(spread[0])
        first = _Traffic(near[0], wanted[0], sent[0], far[0], near[1] + wanted[1] + sent[1] + far[1])
        second = _Traffic(spread[0], spread[0], none, none, 2 * spread[1])
        return [first, second], self.copied_QS[node_BN].reshape(len(node_BN), -1)


def _of_workers(of_BN2S: np.ndarray) -> np.ndarray:
    """[2, B, R]: the workers of all nodes side by side."""
    return of_BN2S.transpose(2, 0, 1, 3).reshape(2, len(of_BN2S), -1)


def _grouped(rows_XL: np.ndarray) -> Iterator[tuple[list[int], np.ndarray]]:
    """Each row that there is, rising, and where it is."""
    if not len(rows_XL):
        return
    order = np.lexsort(rows_XL.T[::-1])
    begins = np.flatnonzero((np.diff(rows_XL[order], axis=0) != 0).any(axis=1)) + 1
    for members in np.split(order, begins):
        yield rows_XL[members[0]].tolist(), members


def _names(pair_XN: np.ndarray) -> np.ndarray:
    """uint64 [X]: the same for the same pairs in any order, and different for others unless 64 random bits are equal.

    Sums of what SplitMix64 makes of each.
    """
    z = pair_XN.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    names: np.ndarray = (z ^ (z >> np.uint64(31))).sum(axis=1)
    return names


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


class _Numbers(NamedTuple):
    """How many, and how many of them are of matrices whose columns are cut."""

    all: int
    columns: int


@lru_cache(maxsize=1024)
def _groups(config: DecoderConfig, home: int, place: int) -> Mapping[tuple[_Stages, bool], _Numbers]:
    """How many numbers the same stages of both have, and whether they are cut over tensor ranks."""
    found: dict[str, list[set[int]]] = {}
    numel, cut = {}, {}
    for side, pp in enumerate((home, place)):
        for stage, parameters in enumerate(stage_parameters(config, pp)):
            for it in parameters:
                found.setdefault(it.name, [set(), set()])[side].add(stage)
                numel[it.name], cut[it.name] = it.numel, it.tp_dim
    sums: dict[tuple[_Stages, bool], _Numbers] = {}
    for name, (one, other) in found.items():
        key = (frozenset(one), frozenset(other)), cut[name] is not None
        so_far = sums.get(key, _Numbers(0, 0))
        sums[key] = _Numbers(so_far.all + numel[name], so_far.columns + numel[name] * bool(cut[name]))
    return sums

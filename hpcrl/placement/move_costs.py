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
        of_homes, of_places = (np.array([self._by_node(it, nodes) for it in of]) for of in (homes, places))
        found = np.zeros((len(homes), len(places)), np.int64)
        for row, (home, own_N) in enumerate(zip(homes, of_homes, strict=True)):
            pairs = np.sort(own_N * KINDS + of_places, axis=1)
            _, firsts, of_pair = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
            reckoned = [self._once(pairs[first].tobytes(), home, places[first]) for first in firsts.tolist()]
            found[row] = np.array(reckoned)[of_pair.reshape(-1)]
        return found

    def _once(self, pairs: bytes, home: Placed, place: Placed) -> int:
        if pairs not in self._made:
            self._made[pairs] = self._nearly(home, place)
        found: int = self._made[pairs]
        return found

    def _by_node(self, place: Placed, nodes: int) -> list[int]:
        """Of each node, the number of what its workers have there, by slot."""
        has: list[list[int]] = [[-1] * self.slots for _ in range(nodes)]
        stages, cuts = _shares(place)
        for index, rank in enumerate(_holders(place)):
            has[rank // self.slots][rank % self.slots] = int(stages[index] * place.layout.size + cuts[index])
        kinds = self._kinds
        return [kinds.setdefault((place.layout, place.backend, *slots), len(kinds)) for slots in has]

    def _nearly(self, home: Placed, place: Placed) -> int:
        if (home.layout, home.ranks, home.backend) == (place.layout, place.ranks, place.backend):
            return 0
        ranks = sorted({*home.ranks, *place.ranks})
        nodes = np.array([rank // self.slots for rank in ranks])
        key = ("groups", _layout(home).pp, _layout(place).pp)
        if key not in self._made:
            self._made[key] = _groups(self.config, *key[1:])
        cells = _Cells.of(self._made[key], home, place, ranks)
        rounds, copied = _shared_out(cells, np.unique(nodes, return_inverse=True)[1])
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


class _Cells(NamedTuple):
    """Runs of a model's numbers, each wholly with a worker or not at all."""

    numel_C: np.ndarray
    source_CR: np.ndarray
    target_CR: np.ndarray

    @staticmethod
    def of(groups: "Counter[tuple[_Stages, bool]]", home: Placed, place: Placed, ranks: Sequence[int]) -> "_Cells":
        sides = (home, place)
        runs = lcm(*(_layout(side).tp for side in sides))
        counts = np.array([runs if is_cut else 1 for _, is_cut in groups])
        group_C = np.repeat(np.arange(len(groups)), counts)
        run_C = np.arange(len(group_C)) - np.repeat(np.cumsum(counts) - counts, counts)
        numel_C = (np.array(list(groups.values())) / counts)[group_C]
        column = {rank: number for number, rank in enumerate(ranks)}
        tables = []
        for side, placed in enumerate(sides):
            layout = _layout(placed)
            member = np.array([[stage in stages[side] for stage in range(layout.pp)] for stages, _ in groups])
            stage_R, cut_R = _shares(placed)
            table = np.zeros((len(group_C), len(ranks)), bool)
            is_own = (run_C // (runs // layout.tp))[:, None] == cut_R
            mine = member[group_C][:, stage_R] & (is_own | (counts[group_C] == 1)[:, None])
            table[:, [column[rank] for rank in _holders(placed)]] = mine
            tables.append(table)
        return _Cells(numel_C, tables[0], tables[1])


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


def _shares(place: Placed) -> tuple[np.ndarray, np.ndarray]:
    """Of each that holds something, its stage and its tensor rank."""
    layout, index = _layout(place), np.arange(len(_holders(place)))
    return index // (layout.tp * layout.dp), index % layout.tp


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


def _shared_out(cells: _Cells, node_R: np.ndarray) -> tuple[list[_Traffic], float]:
    """Both rounds, and what a worker copies at most: who has something, or wants it, has an even share of the work."""
    numel_C, source, target = cells.numel_C, cells.source_CR, cells.target_CR
    on_RN = node_R[:, None] == np.arange(node_R.max() + 1)
    lack = target & ~source
    had_CN, lack_CN = source.astype(np.float64) @ on_RN, lack.astype(np.float64) @ on_RN
    crosses_CN = (had_CN == 0) & (lack_CN > 0)
    near_CN = np.where(had_CN > 0, lack_CN, 0.0)
    first_CN, second_CN = crosses_CN / np.maximum(1, lack_CN), crosses_CN * (1 - 1 / np.maximum(1, lack_CN))
    received = numel_C @ (lack * (had_CN > 0)[:, node_R])
    sent = numel_C @ (source * (near_CN / np.maximum(1, had_CN))[:, node_R])
    far_received = numel_C @ (lack * first_CN[:, node_R])
    far_sent = numel_C @ (source * (crosses_CN.sum(axis=1) / np.maximum(1, source.sum(axis=1)))[:, None])
    spread = numel_C @ (lack * second_CN[:, node_R])
    none = np.zeros(len(node_R))
    copied = float((numel_C @ (source & target)).max(initial=0.0))
    return [_Traffic(sent, received, far_sent, far_received), _Traffic(spread, spread, none, none)], copied

"""How long parameters take from their home to a copy: by what the planner has workers send, and over which links.

`nanoseconds` adds up the planner's own transfers. `matrix`, for thousands of places, reckons with shares instead: it
takes every matrix to be cut into equal runs, and turns to be taken evenly. Where models have many layers both agree to
a few per cent. Shapes: C cells of a model that the same ranks have; R workers, N nodes.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
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
        """int64 [homes, places]."""
        found = [[self._once(home, place) for place in places] for home in homes]
        return np.array(found, np.int64).reshape(len(homes), len(places))

    def _once(self, home: Placed, place: Placed) -> int:
        key = self._geometry(home, place)
        if key not in self._made:
            self._made[key] = self._nearly(home, place)
        found: int = self._made[key]
        return found

    def _geometry(self, home: Placed, place: Placed) -> Any:
        """Equal for pairs that only nodes' numbers distinguish."""
        kinds = (home.layout, home.backend, place.layout, place.backend)
        sides = [_run(it.ranks) for it in (home, place)]
        if None in sides:
            return kinds, home.ranks, place.ranks
        (first, last), (begin, end) = sides  # type: ignore[misc]
        apart = last // self.slots < begin // self.slots or end // self.slots < first // self.slots
        return kinds, first % self.slots, "apart" if apart else begin - first, begin % self.slots

    def _nearly(self, home: Placed, place: Placed) -> int:
        if (home.layout, home.ranks, home.backend) == (place.layout, place.ranks, place.backend):
            return 0
        ranks = sorted({*home.ranks, *place.ranks})
        nodes = np.array([rank // self.slots for rank in ranks])
        cells = _Cells.of(self.config, home, place, ranks)
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


def _run(ranks: Sequence[int]) -> tuple[int, int] | None:
    """The first and the last of ranks that follow one another."""
    return (ranks[0], ranks[-1]) if ranks[-1] - ranks[0] == len(ranks) - 1 and list(ranks) == sorted(ranks) else None


class _Cells(NamedTuple):
    """Runs of a model's numbers, each wholly with a worker or not at all."""

    numel_C: np.ndarray
    source_CR: np.ndarray
    target_CR: np.ndarray

    @staticmethod
    def of(config: DecoderConfig, home: Placed, place: Placed, ranks: Sequence[int]) -> "_Cells":
        pieces = [_pieces(it) for it in (home, place)]
        runs = lcm(*(count for _, count in pieces))
        groups = _groups(config, *(layout.pp for layout, _ in pieces))
        column = {rank: number for number, rank in enumerate(ranks)}
        numel, has = [], [list[np.ndarray](), list[np.ndarray]()]
        for (stages, is_cut), count in groups.items():
            of_group = runs if is_cut else 1
            numel += [count / of_group] * of_group
            for side, (placed, (layout, cuts)) in enumerate(zip((home, place), pieces, strict=True)):
                table = np.zeros((of_group, len(ranks)), bool)
                for index, rank in enumerate(_holders(placed)):
                    if index // (layout.tp * layout.dp) in stages[side]:
                        begin, end = _share(index, layout, cuts, of_group)
                        table[begin:end, column[rank]] = True
                has[side].append(table)
        return _Cells(np.array(numel), np.concatenate(has[0]), np.concatenate(has[1]))


def _pieces(place: Placed) -> tuple[Layout, int]:
    """Its layout, and into how many runs matrices are cut there: by tensor ranks, or by those of a backend that cuts
    them over data."""
    if place.backend and place.layout.dp > 1 and cut_by(place.backend):
        return Layout(tp=place.layout.dp), place.layout.dp
    if place.backend and server_of(place.backend) is not None:
        return Layout(dp=place.layout.dp), 1
    return place.layout, place.layout.tp


def _holders(place: Placed) -> Sequence[int]:
    served = place.backend and server_of(place.backend) is not None
    return place.ranks[:: place.layout.tp] if served else place.ranks


def _share(index: int, layout: Layout, cuts: int, runs: int) -> tuple[int, int]:
    """The runs that the index-th worker has."""
    if runs == 1:
        return 0, 1
    each = runs // cuts
    first = index % layout.tp * each
    return first, first + each


_Stages = tuple[frozenset[int], frozenset[int]]


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

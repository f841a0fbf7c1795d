"""A cut's shards read by the ranks that load it: which of them reads what, so that each element is read once.

What one rank alone has something of, it reads. What several have some of, as columns of a matrix that was saved whole
or a parameter that each of them keeps, one of them reads for all: whoever has least to read so far. Arithmetic only.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from hpcrl.families.places import Span, common, packed, pieces

STRETCH = 1 << 20
"""Elements that are read at a time of each of a shard's arrays."""


class Stretch(NamedTuple):
    """Neighbouring elements of a shard, which is one of a cut's, and what they are, counted from the first."""

    shard: int
    start: int
    stop: int
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class ShardReading:
    """By rank: what it reads for itself; and, round by round, what it reads for several."""

    alone: tuple[tuple[Stretch, ...], ...]
    rounds: tuple[tuple[Stretch | None, ...], ...]


def shared_reading(
    shards: Sequence[Sequence[Span]], wanted: Sequence[Sequence[Span]], numel: int = STRETCH
) -> ShardReading:
    """Who reads what of shards of these spans, if each rank is to have what it has `wanted`."""
    alone: list[list[Stretch]] = [[] for _ in wanted]
    of_several: list[tuple[Stretch, set[int]]] = []
    wanting = _Wanting(wanted)
    for number, spans in enumerate(shards):
        for start, stop, here in pieces(spans, numel):
            stretch, ranks = Stretch(number, start, stop, here), wanting.ranks(here)
            if len(ranks) == 1:
                alone[ranks.pop()].append(stretch)
            elif ranks:
                of_several.append((stretch, ranks))
    loads = [sum(it.stop - it.start for it in stretches) for stretches in alone]
    queues: list[list[Stretch]] = [[] for _ in wanted]
    for stretch, ranks in of_several:
        reader = min(ranks, key=lambda rank: (loads[rank], rank))
        queues[reader].append(stretch)
        loads[reader] += stretch.stop - stretch.start
    return ShardReading(tuple(map(tuple, alone)), tuple(zip_longest(*queues)))


def wanted_of(stretches: Iterable[Stretch | None], wanted: Sequence[Span]) -> tuple[Span, ...]:
    """What somebody is to have of what is read in a round, one behind another."""
    by_parameter = defaultdict(list)
    for span in wanted:
        by_parameter[span.place.parameter].append(span)
    there = (span for stretch in stretches if stretch is not None for span in stretch.spans)
    return packed(
        span.at(place)
        for theirs in there
        for span in by_parameter[theirs.place.parameter]
        for place in common(theirs.place, span.place)
    )


class _Wanting:
    """Which ranks have something of a parameter, by where it begins and ends: few have to be looked at closely."""

    def __init__(self, wanted: Sequence[Sequence[Span]]) -> None:
        self._of: defaultdict[str, list[tuple[int, Span]]] = defaultdict(list)
        for rank, spans in enumerate(wanted):
            for span in spans:
                self._of[span.place.parameter].append((rank, span))
        self._bounds = {name: np.array([_bounds(span) for _, span in of]).T for name, of in self._of.items()}

    def ranks(self, spans: Iterable[Span]) -> set[int]:
        """Who wants any of these."""
        return {rank for span in spans for rank in self._who(span)}

    def _who(self, theirs: Span) -> Iterator[int]:
        if (bounds := self._bounds.get(theirs.place.parameter)) is None:
            return
        first, stop = _bounds(theirs)
        for index in np.flatnonzero((bounds[0] < stop) & (bounds[1] > first)).tolist():
            rank, span = self._of[theirs.place.parameter][index]
            if any(True for _ in common(theirs.place, span.place)):
                yield rank


def _bounds(span: Span) -> tuple[int, int]:
    """The first element in the parameter, and the one behind the last."""
    place = span.place
    return place.first, place.first + (place.rows - 1) * place.stride + place.run

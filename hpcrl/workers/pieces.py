"""The toy host's vectors in pieces: which elements a rank of a layout has, and who sends which to whom. Pure.

A vector is cut over the tp·pp ranks of a part, in their order, into runs as equal as can be; each part has all of it.
Of a rank's run, the ranks of its data-parallel group save a part each.
"""

from typing import NamedTuple

from hpcrl.placement.layouts import Layout
from hpcrl.placement.plan import ReplicaPlan


class Piece(NamedTuple):
    """The elements from `first` up to, and without, `stop`."""

    first: int
    stop: int

    def part(self, index: int, of: int) -> "Piece":
        """The index-th of so many parts, the first of which may have one more."""
        size, more = divmod(self.stop - self.first, of)
        first = self.first + index * size + min(index, more)
        return Piece(first, first + size + (index < more))

    def common(self, other: "Piece") -> "Piece":
        first = max(self.first, other.first)
        return Piece(first, max(first, min(self.stop, other.stop)))

    @property
    def size(self) -> int:
        return self.stop - self.first


class Transfer(NamedTuple):
    """Elements that the target needs and the source, maybe the same rank, has."""

    source: int
    target: int
    piece: Piece


def held(layout: Layout, index: int, width: int) -> Piece:
    """What the index-th rank of a layout has."""
    stage, tensor = index // (layout.tp * layout.dp), index % layout.tp
    return Piece(0, width).part(stage * layout.tp + tensor, layout.tp * layout.pp)


def saved(layout: Layout, index: int, width: int) -> Piece:
    """What it saves of that: each element is saved by one rank."""
    return held(layout, index, width).part(index // layout.tp % layout.dp, layout.dp)


def transfers(source: ReplicaPlan, target: ReplicaPlan, width: int) -> list[Transfer]:
    """What gives each rank of the target its piece of what the source has; its own elements it keeps for itself."""
    giving, taking, found = source.arrangement, target.arrangement, []
    for index, rank in enumerate(target.ranks):
        needed = held(taking, index, width)
        part = source.parts[index // taking.tp % taking.dp % giving.dp]
        for other in part.ranks:
            holder = rank if _has_alike(source, rank, other) else other
            piece = needed.common(held(giving, source.ranks.index(holder), width))
            if piece.size:
                found.append(Transfer(holder, rank, piece))
    return found


def _has_alike(source: ReplicaPlan, rank: int, other: int) -> bool:
    """Whether a rank has of the source what the other has."""
    return rank in source.ranks and _position(source, rank) == _position(source, other)


def _position(replica: ReplicaPlan, rank: int) -> int:
    return next(part.ranks.index(rank) for part in replica.parts if rank in part.ranks)

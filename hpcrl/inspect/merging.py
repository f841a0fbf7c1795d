"""Several logs as one, in the order of time. Knows nothing of what lines are."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")


class Piece(NamedTuple, Generic[T]):
    """Lines of one log, one after another, and their times, which never fall."""

    times: np.ndarray
    lines: Sequence[T]


class Unsent(Generic[T]):
    """What was read of one log and has not gone out yet: half a piece at least, so that much can go out at once."""

    def __init__(self, source: Iterator[Piece[T]]) -> None:
        self._source: Iterator[Piece[T]] | None = source
        self._times: np.ndarray = np.empty(0)
        self._lines: Sequence[T] = []
        self._least = 1

    def fill(self) -> bool:
        """Whether there is anything left."""
        while self._source is not None and len(self._lines) < self._least:
            if (piece := next(self._source, None)) is None:
                self._source = None
                break
            self._times = np.concatenate([self._times, piece.times])
            self._lines = [*self._lines, *piece.lines]
            self._least = max(1, len(piece.lines) // 2)
        return len(self._lines) > 0

    @property
    def last(self) -> float:
        return float(self._times[-1]) if self._source is not None else np.inf

    def take(self, bound: float) -> Piece[T]:
        """What is not later."""
        count = len(self._lines) if self._times[-1] <= bound else int(self._times.searchsorted(bound, "right"))
        taken = Piece(self._times[:count], self._lines[:count])
        self._times, self._lines = self._times[count:], self._lines[count:]
        return taken


def in_order(sources: Iterable[Iterator[Piece[T]]]) -> Iterator[list[T]]:
    """The lines of all. Each log keeps its own order; of the same time, those of the first log come first."""
    unsent = [each for source in sources if (each := Unsent(source)).fill()]
    while unsent:
        # Nothing that is still to come is before the least of the last.
        bound = min(each.last for each in unsent)
        taken = [each.take(bound) for each in unsent]
        order = np.concatenate([piece.times for piece in taken]).argsort(kind="stable")
        lines = [line for piece in taken for line in piece.lines]
        yield [lines[place] for place in order.tolist()]
        unsent = [each for each in unsent if each.fill()]

"""What one rank saves of a role's state, and how others read of it what they have: in memory or on disk."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hpcrl.durable.shards import Shard
from hpcrl.families.places import Span

PIECE_BYTES = 16 << 20
"""What is read at a time, so that loading needs little memory beside what stays."""
LEAST_READ_BYTES = 4096
"""Runs shorter than a page are read together with what lies between them."""


@dataclass(frozen=True)
class CopiedShard:
    """Fulfils `Shard` in host memory."""

    arrays: Mapping[str, np.ndarray]
    spans: tuple[Span, ...]
    state: Mapping[str, Any]

    def with_state(self, **numbers: Any) -> "CopiedShard":
        """The same with more numbers."""
        return replace(self, state={**self.state, **numbers})

    def dtype(self, array: str) -> np.dtype[Any]:
        return self.arrays[array].dtype

    def read(self, array: str, start: int, stop: int) -> np.ndarray:
        return self.arrays[array][start:stop]


def read_runs(shard: Shard, array: str, theirs: Span, ours: Span) -> Iterator[tuple[Span, np.ndarray]]:
    """What a shard has of a place, piece by piece: where we have the piece, and its elements, [rows, run]."""
    size = shard.dtype(array).itemsize
    for row, rows, begin, end in _pieces(theirs, size):
        there = theirs.part(row, rows, begin, end)
        found = shard.read(array, there.offset, there.stop)
        yield ours.part(row, rows, begin, end), _runs(found, there)


def _pieces(span: Span, size: int) -> Iterator[tuple[int, int, int, int]]:
    """First row, rows, and bounds within a run, of what is read at a time."""
    rows, run = span.place.rows, span.place.run
    apart = span.step > run and run * size >= LEAST_READ_BYTES
    if apart or span.step * size > PIECE_BYTES:
        width = max(1, PIECE_BYTES // size)
        yield from ((row, 1, at, min(at + width, run)) for row in range(rows) for at in range(0, run, width))
        return
    height = max(1, PIECE_BYTES // (span.step * size))
    yield from ((row, min(height, rows - row), 0, run) for row in range(0, rows, height))


def _runs(found: np.ndarray, span: Span) -> np.ndarray:
    """[rows, run] of what was read from its first element on, as a view."""
    place, size = span.place, found.itemsize
    return as_strided(found, (place.rows, place.run), (span.step * size, size))

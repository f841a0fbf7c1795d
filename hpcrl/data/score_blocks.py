"""Which scores of queries with keys are held at once where attention is computed step by step. Knows no tensors.

Shapes: H query heads, K key/value heads, D dimensions of a head.
"""

from collections.abc import Iterator
from typing import NamedTuple

CPU_SCORES = 1 << 20
"""Held at once; a few tensors of this size (fp32: 4 MiB) stay in the caches."""
GPU_SCORES = 1 << 25
"""On a GPU (fp32: 128 MiB): enough to keep it busy."""
TENSORS = 8
"""At most so many of this size are there at once, backward."""


class Block(NamedTuple):
    """Some queries of each of some texts of one length, and the keys that one of them sees."""

    queries: slice
    keys: slice

    @property
    def scores(self) -> int:
        """Of one head of one text."""
        return (self.queries.stop - self.queries.start) * (self.keys.stop - self.keys.start)


def most_scores(device_type: str) -> int:
    """Given by the device ("cpu", "cuda") alone, so that bits do not change."""
    return GPU_SCORES if device_type == "cuda" else CPU_SCORES


def texts_at_once(length: int, before: int, heads: tuple[int, int, int], most: int) -> int:
    """How many texts of this length, after prefixes of `before` tokens, are taken together: so many that their scores,
    their queries, or their keys and values are at most `most` numbers. `heads` are H, K and D."""
    (queries, keys, dimensions), seen = heads, before + length
    return max(1, most // max(queries * length * max(seen, dimensions), 2 * keys * dimensions * seen))


def blocks(length: int, before: int, window: int, texts_and_heads: int, most: int) -> Iterator[Block]:
    """All queries of such texts, so many at a time that the scores of `texts_and_heads` of them are at most `most`,
    or one query's. With a `window` (0: none) a query sees so many tokens, itself included."""
    step = max(1, most // (texts_and_heads * (before + length)))
    for begin in range(0, length, step):
        end = min(begin + step, length)
        first = max(0, before + begin + 1 - window) if window else 0
        yield Block(slice(begin, end), slice(first, before + end))

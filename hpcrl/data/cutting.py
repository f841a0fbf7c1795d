"""How the rows of an epoch become batches: so many rows, so many tokens, or rows of nearly equally many tokens.

Functions of the order and the lengths of rows alone, so that a batch can be cut again from its cursor. Knows no ids.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hpcrl.data.partition import balanced_batches

End = Callable[[int], int]
"""Where a batch begins in an epoch → where it ends; where the rows that are left make none, it ends where it begins."""


@dataclass(frozen=True, eq=False)
class Epoch:
    """The places of all rows in the order in which they are read, [rows], and how they are cut."""

    order: np.ndarray
    end: End

    def batches(self) -> int:
        """How many there are."""
        count, at = 0, 0
        while (end := self.end(at)) > at:
            count, at = count + 1, end
        return count


class Cutting(Protocol):
    def cut(self, order: np.ndarray) -> Epoch:
        """The batches of an epoch whose rows come in this order."""

    def batches(self, rows: int) -> int | None:
        """Of an epoch of so many rows; None where it depends on their order."""


@dataclass(frozen=True)
class ByRows:
    """So many rows each. The last of an epoch has fewer, or with `drop_last` is left out."""

    size: int
    drop_last: bool = False

    def cut(self, order: np.ndarray) -> Epoch:
        count, least = len(order), self.size if self.drop_last else 1
        return Epoch(order, lambda begin: begin if count - begin < least else min(begin + self.size, count))

    def batches(self, rows: int) -> int:
        return rows // self.size if self.drop_last else -(-rows // self.size)


@dataclass(frozen=True, eq=False)
class ByTokens:
    """As many rows as have so many tokens together, at least one. With `drop_last`, rows at the end of an epoch that
    have fewer are left out."""

    budget: int
    lengths: np.ndarray
    """Of each row, by its place."""
    drop_last: bool = False

    def cut(self, order: np.ndarray) -> Epoch:
        count = len(order)
        through = np.concatenate([[0], np.cumsum(self.lengths[order], dtype=np.int64)])  # [rows + 1]: before each row

        def end(begin: int) -> int:
            full = int(through[begin]) + self.budget
            if begin == count or (self.drop_last and through[count] < full):
                return begin
            return max(int(np.searchsorted(through, full, "right")) - 1, begin + 1)

        return Epoch(order, end)

    def batches(self, rows: int) -> int | None:
        return None


@dataclass(frozen=True, eq=False)
class Balanced:
    """At most so many rows each, with nearly equally many tokens, that with the longest row first.

    Which rows come together changes with the order. With `drop_last` its last rows are left out, if they are too few
    for a whole batch.
    """

    size: int
    lengths: np.ndarray
    """Of each row, by its place."""
    drop_last: bool = False

    def cut(self, order: np.ndarray) -> Epoch:
        kept = len(order) // self.size * self.size if self.drop_last else len(order)
        filled = balanced_batches(self.lengths[order[:kept]].tolist(), self.size)
        ends = np.cumsum([0, *map(len, filled)])
        arranged = order[np.concatenate([*filled, np.arange(kept, len(order))]).astype(np.int64)]

        def end(begin: int) -> int:
            return begin if begin >= kept else int(ends[np.searchsorted(ends, begin, "right")])

        return Epoch(arranged, end)

    def batches(self, rows: int) -> int:
        return ByRows(self.size, self.drop_last).batches(rows)

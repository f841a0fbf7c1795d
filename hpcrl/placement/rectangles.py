"""Rectangles of a buffer: whatever of it moves, told in as few numbers as can be. Shape legend: N rectangles."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Rectangles:
    """Elements of a buffer in an order: of each rectangle `rows_N` runs of `runs_N`, `steps_N` apart; int64."""

    offsets_N: np.ndarray
    steps_N: np.ndarray
    rows_N: np.ndarray
    runs_N: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets_N)

    @property
    def numel(self) -> int:
        return int(self.rows_N @ self.runs_N)

    def packed(self) -> np.ndarray:
        """Where each begins in a buffer that holds nothing else."""
        sizes = self.rows_N * self.runs_N
        return np.cumsum(sizes) - sizes

    def dense(self) -> "Rectangles":
        """The same rows and runs in such a buffer."""
        return Rectangles(self.packed(), self.runs_N, self.rows_N, self.runs_N)

    def pieces(self, numels: Iterable[int]) -> Iterator["Rectangles"]:
        """The same elements, so many at a time. None of the numbers is 0; together they are all."""
        begins, stop = self.packed(), 0
        for numel in numels:
            start, stop = stop, stop + numel
            first, last = np.searchsorted(begins, [start, stop - 1], side="right") - 1
            parts = list(self._part(first, start - begins[first], min(stop - begins[first], self._size(first))))
            if last > first:
                inner = slice(first + 1, last)
                parts.append(self._chosen(inner))
                parts += self._part(last, 0, stop - begins[last])
            yield joined(parts)

    def _size(self, index: int) -> int:
        return int(self.rows_N[index] * self.runs_N[index])

    def _chosen(self, those: slice) -> "Rectangles":
        return Rectangles(*(column[those] for column in _columns(self)))

    def _part(self, index: int, start: int, stop: int) -> Iterator["Rectangles"]:
        """The elements `start` … `stop` of one rectangle: the end of a run, whole runs, the begin of a run."""
        offset, step, run = (int(column[index]) for column in (self.offsets_N, self.steps_N, self.runs_N))
        while start < stop:
            row, begin = divmod(int(start), run)
            rows = (int(stop) - int(start)) // run if not begin else 0
            length = run if rows else min(run - begin, int(stop) - int(start))
            rows = max(rows, 1)
            yield Rectangles(
                *np.array([[offset + row * step + begin], [step if rows > 1 else length], [rows], [length]])
            )
            start += rows * length


NONE = Rectangles(*np.zeros((4, 0), np.int64))


def joined(parts: Iterable[Rectangles]) -> Rectangles:
    """One after another; there is one."""
    return Rectangles(*(np.concatenate(columns) for columns in zip(*map(_columns, parts), strict=True)))


def _columns(rectangles: Rectangles) -> tuple[np.ndarray, ...]:
    return rectangles.offsets_N, rectangles.steps_N, rectangles.rows_N, rectangles.runs_N

"""Where what some have of a parameter meets what others are to have of it: rectangles, each in one span of all of them.

Shape legend: Q rectangles, G sets of them, S source patterns, T target patterns, H = S + T; I × J cells of a grid.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hpcrl.placement.holdings import Pattern

_Box = tuple[int, int, int, int, int, int]
"""First row and end, first column and end that a span covers of the grid; where the grid's first element would be in
the buffer, and how far apart its rows are there."""


@dataclass(frozen=True, eq=False)
class Overlaps:
    """Rectangles of a parameter, those that the same patterns have together (a set) one after another."""

    rows_Q: np.ndarray
    runs_Q: np.ndarray
    at_QH: np.ndarray
    """Where a rectangle begins in each pattern that has it; sources come first."""
    steps_QH: np.ndarray
    first_G: np.ndarray
    """The first rectangle of each set."""
    count_G: np.ndarray
    has_GH: np.ndarray


def found_overlaps(sources: tuple[Pattern, ...], targets: tuple[Pattern, ...]) -> Overlaps:
    """All elements that a target has, in as few rectangles as can be. Raises ValueError where no source has one."""
    patterns = sources + targets
    width = _width(patterns)
    boxes = [[box for span in pattern for box in _boxes(span, width)] for pattern in patterns]
    rows = np.array(sorted({edge for parts in boxes for box in parts for edge in box[:2]}))
    columns = np.array(sorted({edge for parts in boxes for box in parts for edge in box[2:4]}))
    grid = _painted(boxes, rows, columns)
    kept = _rectangles(grid, len(sources))
    lacking = [(i, j) for i, _, j, _ in kept if (grid[i, j, : len(sources)] < 0).all()]
    if lacking:
        i, j = lacking[0]
        raise ValueError(f"nobody has element {rows[i] * width + columns[j]}")
    return _ordered(kept, grid, boxes, rows, columns)


overlaps = lru_cache(maxsize=4096)(found_overlaps)
"""The same of patterns that come again and again."""


def _width(patterns: Sequence[Pattern]) -> int:
    """How far apart the rows of the grid are: like most runs of most places."""
    strides = Counter(stride for pattern in patterns for _, rows, _, stride, _, _ in pattern if rows > 1)
    if strides:
        return strides.most_common(1)[0][0]
    return max((first + run for pattern in patterns for first, _, run, _, _, _ in pattern), default=1)


def _boxes(span: tuple[int, int, int, int, int, int], width: int) -> list[_Box]:
    """A span as boxes of the grid: one of equal strides, at most three of a single run."""
    first, rows, run, stride, offset, step = span
    if rows > 1 and (stride != width or first % width + run > width):
        parts = [(first + row * stride, 1, run, run, offset + row * step, run) for row in range(rows)]
        return [box for part in parts for box in _boxes(part, width)]
    row, column = divmod(first, width)
    if rows > 1:
        return [(row, row + rows, column, column + run, offset - row * step - column, step)]
    last, end = divmod(first + run, width)
    at = offset - first
    if row == last:
        return [(row, row + 1, column, end, at, width)]
    found = [(row, row + 1, column, width, at, width)] if column else []
    if row + bool(column) < last:
        found.append((row + bool(column), last, 0, width, at, width))
    return [*found, (last, last + 1, 0, end, at, width)] if end else found


def _painted(boxes: list[list[_Box]], rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Of each cell and pattern the box in which it is; -1 where the pattern does not have it."""
    grid = np.full((len(rows) - 1, len(columns) - 1, len(boxes)), -1, np.int32)
    bounds = np.array([part[:4] for parts in boxes for part in parts]).reshape(-1, 4)
    edges = [*np.searchsorted(rows, bounds[:, :2]).T, *np.searchsorted(columns, bounds[:, 2:]).T]
    numbers = ((number, holder) for holder, parts in enumerate(boxes) for number in range(len(parts)))
    for (number, holder), top, bottom, begin, end in zip(numbers, *(edge.tolist() for edge in edges), strict=True):
        grid[top:bottom, begin:end, holder] = number
    return grid


def _rectangles(grid: np.ndarray, sources: int) -> list[tuple[int, int, int, int]]:
    """Neighbouring cells that a target has and that all have in the same boxes: their rows and columns."""
    bands, width, _ = grid.shape
    changes = np.ones((bands, width), bool)
    changes[:, 1:] = (grid[:, 1:] != grid[:, :-1]).any(axis=2)
    wanted: np.ndarray = np.any(grid[:, :, sources:] >= 0, axis=2)
    open_: dict[tuple[int, int, bytes], int] = {}
    found = []
    for band in range(bands + 1):
        now: dict[tuple[int, int, bytes], int] = {}
        if band < bands:
            begins = np.flatnonzero(changes[band])
            for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), width], strict=True):
                if wanted[band, begin]:
                    key = (begin, end, grid[band, begin].tobytes())
                    now[key] = open_.pop(key, band)
        found += [(top, band, begin, end) for (begin, end, _), top in open_.items()]
        open_ = now
    return sorted(found, key=lambda part: (part[0], part[2]))


def _ordered(
    kept: list[tuple[int, int, int, int]],
    grid: np.ndarray,
    boxes: list[list[_Box]],
    rows: np.ndarray,
    columns: np.ndarray,
) -> Overlaps:
    """The rectangles by sets, each set where its first rectangle is."""
    top, bottom, left, right = np.array(kept, np.int64).reshape(-1, 4).T
    number_QH = grid[top, left]
    sets: dict[bytes, list[int]] = {}
    for rectangle, has in enumerate(number_QH >= 0):
        sets.setdefault(has.tobytes(), []).append(rectangle)
    order = np.array([rectangle for members in sets.values() for rectangle in members], np.int64)
    count_G = np.array([len(members) for members in sets.values()], np.int64)
    number_QH, first_row, first_column = number_QH[order], rows[top[order]], columns[left[order]]
    origins, steps = np.array([part[4:] for parts in boxes for part in parts], np.int64).T
    before_H = np.cumsum([0, *map(len, boxes[:-1])])
    box_QH = np.where(number_QH >= 0, number_QH + before_H, 0)  # where a pattern has nothing, no matter which
    steps_QH = steps[box_QH]
    at_QH = origins[box_QH] + first_row[:, None] * steps_QH + first_column[:, None]
    return Overlaps(
        rows[bottom[order]] - first_row,
        columns[right[order]] - first_column,
        at_QH,
        steps_QH,
        np.cumsum(count_G) - count_G,
        count_G,
        number_QH[np.cumsum(count_G) - count_G] >= 0,
    )

"""What the numbers of rows add up to, exactly: the sum of all is the same to the bit, in whatever pieces they lie."""

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import neg

import msgspec
import numpy as np

from hpcrl.data.samples import SequenceSample

AT_ONCE = 1 << 16
"""Numbers that are Python's own at a time."""


class Total(msgspec.Struct, frozen=True):
    """Of `count` numbers. Their sum is that of `parts`, of which there are few, without any rounding."""

    parts: tuple[float, ...]
    count: int


def total_of(sample: SequenceSample) -> Total:
    """Of all numbers of all keys, NaN apart, which stands for none. Integers count as the nearest float64."""
    parts: list[float] = []
    count = 0
    for array in sample.data.values():
        flat = array.reshape(-1)
        for first in range(0, len(flat), AT_ONCE):
            numbers = flat[first : first + AT_ONCE].astype(np.float64)
            numbers = numbers[~np.isnan(numbers)]
            count += len(numbers)
            parts = _exact([*parts, *numbers.tolist()])
    return Total(tuple(parts), count)


def mean_of(totals: Iterable[tuple[Total, int]]) -> float:
    """Over the numbers of all, each so many times; rounded once in the sum and once in the quotient. NaN where there
    is no number."""
    parts: list[float] = []
    count = 0
    for total, times in totals:
        parts += total.parts * times
        count += total.count * times
    return _rounded(parts) / count if count else math.nan


def _exact(numbers: Sequence[float]) -> list[float]:
    """Few numbers whose exact sum is that of these. Where they have none, it is infinite or not a number."""
    parts: list[float] = []
    rest = _rounded(numbers)
    while rest:
        parts.append(rest)
        if not math.isfinite(rest):
            break
        rest = math.fsum(chain(numbers, map(neg, parts)))
    return parts


def _rounded(numbers: Sequence[float]) -> float:
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):
        return sum(numbers)

"""Which sequences go through a model together, by their lengths and samples alone. Knows no tensors."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np


def micro_batches(lengths: np.ndarray, samples: np.ndarray, tokens: int) -> Iterator[list[int]]:
    """Rows in groups of at most `tokens` tokens, or of one larger sample: all rows of a sample go together.

    The longest samples come first: where each has one row, equal lengths stand together.
    """
    parts = runs(samples)
    sizes = np.array([lengths[part.start : part.stop].sum() for part in parts], np.int64)
    batch: list[int] = []
    held = 0
    for number in np.argsort(-sizes, kind="stable").tolist():
        if batch and held + sizes[number] > tokens:
            yield batch
            batch, held = [], 0
        batch.extend(parts[number])
        held += int(sizes[number])
    if batch:
        yield batch


def runs(samples: np.ndarray) -> list[range]:
    """The rows of each sample, whose rows are neighbours, in order."""
    if not len(samples):
        return []
    bounds = [0, *(np.flatnonzero(np.diff(samples)) + 1).tolist(), len(samples)]
    return [range(begin, end) for begin, end in pairwise(bounds)]

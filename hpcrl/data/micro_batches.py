"""Which sequences go through a model together, by their lengths alone. Knows no tensors."""

from collections.abc import Iterator

import numpy as np


def micro_batches(lengths: np.ndarray, tokens: int) -> Iterator[list[int]]:
    """Rows in groups of at most `tokens` tokens (or of one longer row), longest first: equal lengths stand together."""
    batch: list[int] = []
    held = 0
    for row in np.argsort(-lengths, kind="stable").tolist():
        if batch and held + lengths[row] > tokens:
            yield batch
            batch, held = [], 0
        batch.append(row)
        held += int(lengths[row])
    if batch:
        yield batch

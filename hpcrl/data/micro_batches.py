"""Which sequences go through a model together, by their lengths, samples and prompts. Knows no tensors."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np


def micro_batches(
    lengths: np.ndarray, samples: np.ndarray, prompts: np.ndarray, numbers: np.ndarray, tokens: int
) -> Iterator[list[int]]:
    """Rows in groups of at most `tokens` tokens, or of one larger sample: all rows of a sample go together.

    Rows of one number begin with the same prompt, of `prompts` tokens, which counts once in a group. Samples that share
    a prompt stand together as far as the bound allows; else the longest come first, so that equal lengths do.
    """
    parts = runs(samples)
    sizes = [_size(lengths, prompts, numbers, part, set()) for part in parts]
    batch: list[int] = []
    held, read = 0, set[int]()
    for sample in _order(sizes, [int(numbers[part.start]) for part in parts]):
        more = _size(lengths, prompts, numbers, parts[sample], read)
        if batch and held + more > tokens:
            yield batch
            batch, held, read, more = [], 0, set(), sizes[sample]
        batch.extend(parts[sample])
        held += more
        read.update(numbers[parts[sample].start : parts[sample].stop].tolist())
    if batch:
        yield batch


def runs(samples: np.ndarray) -> list[range]:
    """The rows of each sample, whose rows are neighbours, in order."""
    if not len(samples):
        return []
    bounds = [0, *(np.flatnonzero(np.diff(samples)) + 1).tolist(), len(samples)]
    return [range(begin, end) for begin, end in pairwise(bounds)]


def _order(sizes: list[int], numbers: list[int]) -> list[int]:
    """Samples by the largest one with the same prompt, then by their own size; else as they stand."""
    largest: dict[int, int] = {}
    first: dict[int, int] = {}
    for sample, (size, number) in enumerate(zip(sizes, numbers, strict=True)):
        largest[number] = max(size, largest.get(number, 0))
        first.setdefault(number, sample)
    return sorted(range(len(sizes)), key=lambda i: (-largest[numbers[i]], first[numbers[i]], -sizes[i]))


def _size(lengths: np.ndarray, prompts: np.ndarray, numbers: np.ndarray, rows: range, read: set[int]) -> int:
    """Tokens of these rows, where those of the prompts that are `read` already don't count."""
    size, seen = 0, set[int]()
    for row in rows:
        number = int(numbers[row])
        size += int(lengths[row]) - (int(prompts[row]) if number in read or number in seen else 0)
        seen.add(number)
    return size

"""How sequences are divided: over minibatches, data-parallel parts, or neighbouring pieces. Arithmetic on lengths only.

Every result is a function of the arguments, ties included, so that a division can be computed again after a crash.
"""

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, pairwise

import numpy as np

Positions = tuple[int, ...]


def contiguous(sizes: Sequence[float], parts: int, min_size: int = 1) -> list[range]:
    """Cut items into runs of neighbours so that the heaviest run is as light as any such cut allows.

    Each run has at least `min_size` items. Dynamic programming over prefixes: O(parts · items²), vectorised.

    Raises:
        ValueError: fewer than parts · min_size items, or sizes below zero.
    """
    count = len(sizes)
    _check_division(count, parts, min_size)
    ends = np.concatenate([[0.0], np.cumsum(np.asarray(sizes, dtype=np.float64))])  # [count + 1]: weight of a prefix
    if (np.diff(ends) < 0).any():
        raise ValueError(f"the smallest size is {min(sizes)}; sizes are zero or more")
    heaviest = np.full(count + 1, math.inf)  # of the best cut of each prefix
    heaviest[0] = 0.0
    last_cut = np.zeros((parts, count + 1), dtype=np.int64)
    for part in range(parts):
        before, heaviest = heaviest, np.full(count + 1, math.inf)
        for end in range((part + 1) * min_size, count + 1):
            options = np.maximum(before[: end - min_size + 1], ends[end] - ends[: end - min_size + 1])
            last_cut[part, end] = start = int(options.argmin())
            heaviest[end] = options[start]
    cuts = [count]
    for part in reversed(range(parts)):
        cuts.append(int(last_cut[part, cuts[-1]]))
    return [range(start, end) for start, end in pairwise(reversed(cuts))]


def balanced_batches(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Divide sequences into as few batches of at most `batch_size` as possible, of nearly equal token counts.

    The batch with the longest sequence comes first, so that what does not fit in memory fails at once: micro-batches
    bound what a step takes, but cut no sequence. The others follow, the heaviest first. Of sequences of about one
    length, as many as there are batches are placed in the order in which they stand: another order of the same
    sequences makes other batches, where the longest first alone would always make the same.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; a batch holds at least one sequence")
    batches = math.ceil(len(lengths) / batch_size)
    longest = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    alike = (sorted(longest[start : start + batches]) for start in range(0, len(longest), batches or 1))
    placed: list[list[int]] = [[] for _ in range(batches)]
    for batch, i in _placed(lengths, chain.from_iterable(alike), [0] * batches, batch_size):
        placed[batch].append(i)
    filled = [sorted(batch) for batch in placed]
    filled.sort(key=lambda batch: -sum(lengths[i] for i in batch))
    most = max(lengths, default=0)
    first = next((batch for batch in filled if any(lengths[i] == most for i in batch)), None)
    return sorted(filled, key=lambda batch: batch is not first)


def partition_step(
    lengths: Sequence[int], minibatches: int, dp: int, rows: Sequence[str] | None = None
) -> tuple[tuple[Positions, ...], tuple[Positions, ...]]:
    """A step's samples, by position, as minibatches, and as parts for `dp` workers: (minibatches, parts), both sorted.

    Minibatches are runs of samples that differ by one in size at most; there are fewer where samples are. Parts are
    those of `share_out`. With `rows`, the row of each sample, whole rows are divided instead of samples; those of one
    row are neighbours.
    """
    _check_division(len(lengths), minibatches, 0)
    whole = _whole(range(len(lengths)), rows)
    cuts = [len(whole) * i // minibatches for i in range(minibatches + 1)]
    runs = [tuple(chain.from_iterable(whole[start:end])) for start, end in pairwise(cuts) if start < end]
    return tuple(runs), share_out(lengths, runs, dp, rows)


def share_out(
    lengths: Sequence[int], minibatches: Iterable[Positions], parts: int, rows: Sequence[str] | None = None
) -> tuple[Positions, ...]:
    """The positions of each part: every minibatch is spread over the parts by `lengths`, a measure of samples' work.

    So every optimizer step is balanced. A minibatch with fewer samples than parts leaves some parts idle, and in a
    small step a part may be empty. A sample of several minibatches is placed by the first. With `rows`, the row of each
    sample, those of one row that are in one minibatch come into one part.
    """
    return _shared_out(tuple(lengths), tuple(map(tuple, minibatches)), parts, None if rows is None else tuple(rows))


@lru_cache(maxsize=4)  # roles that learn from the same samples are asked for one after another
def _shared_out(
    lengths: tuple[int, ...], minibatches: tuple[Positions, ...], parts: int, rows: tuple[str, ...] | None
) -> tuple[Positions, ...]:
    _check_division(len(lengths), parts, 0)
    chosen: list[list[int]] = [[] for _ in range(parts)]
    loads = [0] * parts
    placed: set[int] = set()
    for minibatch in minibatches:
        left = minibatch if placed.isdisjoint(minibatch) else tuple(i for i in minibatch if i not in placed)
        placed.update(minibatch)
        whole, of_whole = _whole(left, rows), list(map(lengths.__getitem__, left))
        if rows is not None:
            of_whole = [sum(map(lengths.__getitem__, piece)) for piece in whole]
        for part, piece in _longest_first(of_whole, loads):
            chosen[part] += whole[piece]
            loads[part] += of_whole[piece]
    return tuple(tuple(sorted(members)) for members in chosen)


def _whole(positions: Iterable[int], rows: Sequence[str] | None) -> list[Positions]:
    """The samples at these positions, those of a row together."""
    if rows is None:
        return list(zip(positions, strict=True))
    of_row: dict[str, list[int]] = {}
    for position in positions:
        of_row.setdefault(rows[position], []).append(position)
    return [tuple(together) for together in of_row.values()]


def _longest_first(lengths: Sequence[int], loads: Sequence[int]) -> Iterator[tuple[int, int]]:
    """As `_placed`, the longest first (Graham 1969): the heaviest bin is at most 4/3 of the best."""
    items = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    return _placed(lengths, items, loads, len(lengths))


def _placed(
    lengths: Sequence[int], items: Iterable[int], loads: Sequence[int], capacity: int
) -> Iterator[tuple[int, int]]:
    """Put each item, one after another, into the lightest bin that has room for one more: (bin, item).

    Among equally light bins that with fewer items, then that with the smaller `loads`, then the first is taken.
    """
    bins = [(0, 0, load, which) for which, load in enumerate(loads)]
    heapq.heapify(bins)
    for item in items:
        weight, count, load, which = bins[0]
        yield which, item
        if count + 1 < capacity:
            heapq.heapreplace(bins, (weight + lengths[item], count + 1, load, which))
        else:
            heapq.heappop(bins)


def _check_division(count: int, parts: int, min_size: int) -> None:
    if parts < 1 or min_size < 0 or count < parts * min_size:
        raise ValueError(
            f"{count} items do not make {parts} parts of at least {min_size}: "
            f"there must be a part, and parts · min_size = {parts * min_size} items"
        )

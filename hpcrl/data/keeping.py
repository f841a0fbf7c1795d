"""Which of a step's samples stay for good. A function of the run's seed and the rows' ids, for ever."""

import hashlib
from functools import lru_cache
from itertools import groupby
from typing import Literal

from hpcrl.data.order import group_of, row_of


@lru_cache(4)
def kept(ids: tuple[str, ...], seed: int, wanted: int | Literal["all"], responses: int = 1) -> tuple[str, ...]:
    """Of the ids, those of whole rows, in their order, whose samples have `wanted` responses together at most, of
    `responses` each; at least one row's, unless none are wanted.

    Rows are taken by the hash of (seed, row), so that one that is kept comes back whenever it is read again, as long as
    no row of its step precedes it. Each train_step asks for the same, and its archive once more.
    """
    if wanted == "all":
        return ids
    groups = sorted((tuple(group) for _, group in groupby(ids, key=group_of)), key=lambda group: _place(seed, group[0]))
    taken, count = set[str](), 0
    for group in groups:
        count += len(group) * responses
        if not wanted or (taken and count > wanted):
            break
        taken.update(group)
    return tuple(sample for sample in ids if sample in taken)


def _place(seed: int, sample: str) -> bytes:
    return hashlib.blake2b(f"{seed}\nkept\n{row_of(sample)}".encode(), digest_size=16).digest()

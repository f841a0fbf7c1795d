"""Which blocks of a paged cache each slot has. Knows tokens by number alone: no tensors, no time."""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from hpcrl.data.slots import Move

PAGE = 256
"""Tokens of a block: flash-attn reads blocks of a multiple of this."""


def pages(tokens: int) -> int:
    """Blocks that so many tokens fill."""
    return -(-tokens // PAGE)


def ring_pages(longest: int, window: int = 0) -> int:
    """Blocks that a row of so many tokens needs at most, where tokens see a window (0: all): as many as it can lie
    in."""
    return min(pages(longest), pages(window - 1) + 1) if window else pages(longest)


def needed_pages(lengths: Iterable[int], window: int = 0) -> int:
    """Blocks of rows of so many tokens side by side, and the one that is nobody's."""
    return 1 + sum(ring_pages(length, window) for length in lengths)


class Pages:
    """int32 [slots, columns]: where the first, second, … PAGE tokens of each slot lie. Where rows see a window, the
    blocks of a slot follow one another in a ring.

    A block is one slot's or nobody's. Slots without a row lead to block 0, which is never one's.
    """

    def __init__(self, slots: int, count: int, columns: int) -> None:
        self.table = np.zeros((slots, columns), np.int32)
        self._free = list(range(1, count))
        heapify(self._free)
        self._of_slot: list[list[int]] = [[] for _ in range(slots)]

    def of(self, slot: int) -> list[int]:
        """In the order of its tokens, each once."""
        return self._of_slot[slot]

    def seat(self, slot: int, count: int) -> None:
        """Give so many blocks to a slot that has none."""
        assert not self._of_slot[slot], slot
        self._set(slot, [heappop(self._free) for _ in range(count)])

    def leave(self, moves: Sequence[Move], active: int) -> None:
        """Slots from `active` on have no row any more; those that were moved are the targets' now."""
        for move in moves:
            self._give_back(move.target)
            self._set(move.target, self._of_slot[move.source])
            self._set(move.source, [])
        for slot in range(active, len(self._of_slot)):
            self._give_back(slot)

    def _give_back(self, slot: int) -> None:
        for block in self._of_slot[slot]:
            heappush(self._free, block)
        self._set(slot, [])

    def _set(self, slot: int, blocks: list[int]) -> None:
        self._of_slot[slot] = blocks
        self.table[slot] = np.resize(np.array(blocks, np.int32), self.table.shape[1]) if blocks else 0

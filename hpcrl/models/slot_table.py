"""The running numbers of every active row, one column a slot. Knows no model; S slots, N of them concerned."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hpcrl.data.slots import Move
from hpcrl.models.transfers import sent

_SEED, _TOKEN, _COUNT, _POSITION = range(4)


class SlotTable:
    """int64 [4, S]: seed, the token to be fed next, tokens generated so far, the next token's position.

    It stays where it is on the device, and nothing here waits for that: the host counts tokens by itself.
    """

    def __init__(self, slots: int, device: torch.device) -> None:
        self._table = torch.zeros((4, slots), dtype=torch.int64, device=device)

    def begin(self, first: int, seeds: Sequence[int], lengths: Sequence[int], counts: Sequence[int]) -> None:
        """Seat rows in the slots from `first` on. `lengths` are those of what is read first: a prompt, and after it the
        `counts` tokens that are generated already."""
        columns = [[signed(seed) for seed in seeds], [0] * len(seeds), list(counts), [it - 1 for it in lengths]]
        self._table[:, first : first + len(seeds)] = sent(columns, self._table.device)

    def seeds(self, span: slice) -> Tensor:
        return self._table[_SEED, span]

    def tokens(self, span: slice) -> Tensor:
        return self._table[_TOKEN, span]

    def counts(self, span: slice) -> Tensor:
        return self._table[_COUNT, span]

    def positions(self, span: slice) -> Tensor:
        return self._table[_POSITION, span]

    def advance(self, span: slice, tokens_N: Tensor) -> None:
        """Take one more token in each slot of the span."""
        self.tokens(span).copy_(tokens_N)
        self._table[_COUNT:, span].add_(1)

    def move(self, moves: Sequence[Move]) -> None:
        """Sources and targets are disjoint."""
        for move in moves:
            self._table[:, move.target] = self._table[:, move.source]


def signed(seed: int) -> int:
    """64 bits, unsigned or signed, as the signed number of the same bits."""
    seed &= (1 << 64) - 1
    return seed - (1 << 64) if seed >> 63 else seed

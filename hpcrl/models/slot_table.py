"""The running numbers of every active row, one column a slot. Knows no model; S slots, N of them concerned."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hpcrl.data.slots import Move

_ROW, _SEED, _LIMIT, _TOKEN, _COUNT, _POSITION = range(6)


class SlotTable:
    """int64 [6, S]: row, seed, limit, the token to be fed next, tokens generated so far, the next token's position."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self._table = torch.zeros((6, slots), dtype=torch.int64, device=device)

    def begin(
        self, first: int, rows: Sequence[int], seeds: Sequence[int], limits: Sequence[int], prompts: Sequence[int]
    ) -> None:
        """Seat rows in the slots from `first` on. `prompts` are prompt lengths; no token is generated yet."""
        nothing = [0] * len(rows)
        positions = [length - 1 for length in prompts]
        columns = torch.tensor([rows, [signed(seed) for seed in seeds], limits, nothing, nothing, positions])
        self._table[:, first : first + len(rows)] = columns

    def rows(self, span: slice) -> Tensor:
        return self._table[_ROW, span]

    def seeds(self, span: slice) -> Tensor:
        return self._table[_SEED, span]

    def tokens(self, span: slice) -> Tensor:
        return self._table[_TOKEN, span]

    def counts(self, span: slice) -> Tensor:
        return self._table[_COUNT, span]

    def positions(self, span: slice) -> Tensor:
        return self._table[_POSITION, span]

    def advance(self, span: slice, tokens_N: Tensor, eos_E: Tensor) -> list[int]:
        """Take one more token in each slot of the span. Returns the slots that ended by it, ascending."""
        part = self._table[:, span]
        part[_TOKEN] = tokens_N
        part[_COUNT:] += 1
        ended = part[_COUNT] >= part[_LIMIT]
        if eos_E.numel():
            ended |= (tokens_N[:, None] == eos_E).any(-1)
        return [span.start + slot for slot in ended.nonzero()[:, 0].tolist()]

    def move(self, moves: Sequence[Move]) -> None:
        """Sources and targets are disjoint."""
        if moves:
            self._table[:, [move.target for move in moves]] = self._table[:, [move.source for move in moves]]


def signed(seed: int) -> int:
    """64 bits, unsigned or signed, as the signed number of the same bits."""
    seed &= (1 << 64) - 1
    return seed - (1 << 64) if seed >> 63 else seed

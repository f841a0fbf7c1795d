"""Keys and values of the rows being generated, in blocks that a kernel finds by a table. Knows no tokens, no schedule.

Shapes: P blocks, B tokens of a block, S slots, N rows, H query heads, K key/value heads, D of a head.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hpcrl.data.pages import PAGE, Pages, needed_pages, pages, ring_pages
from hpcrl.data.slots import Move
from hpcrl.models.transfers import sent


class Step(NamedTuple):
    """What all blocks of a model are told of a step."""

    table: Tensor
    """int32 [N, columns]."""
    lengths: Tensor
    """int32 [N]: tokens that are stored already."""


class PagedCache:
    """Of so many blocks of a model with one window, [2, blocks, P, B, K, D]. Row i of a batch lives in slot i.

    The table lies where it is on the device, and changes only as rows enter, move and leave. `attend` is
    `flash_attn_with_kvcache` of flash-attn 2.8, which stores the new token, too.
    """

    def __init__(
        self,
        blocks: int,
        heads: Sequence[int],
        slots: int,
        lengths: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        attend: Callable[..., Any],
        window: int = 0,
        softcap: float | None = None,
    ) -> None:
        """`heads` are K and D; `lengths` the most tokens of the longest rows that can be side by side."""
        longest, (count, dimensions) = max(lengths), heads
        self.capacity = ring_pages(longest, window) * PAGE
        self._window = window
        self._softcap = softcap
        self._attend = attend
        needed = needed_pages(lengths, window)
        self._pages = Pages(slots, needed, pages(longest))
        self._table = torch.zeros(self._pages.table.shape, dtype=torch.int32, device=device)
        self._all = torch.zeros((2, blocks, needed, PAGE, count, dimensions), dtype=dtype, device=device)

    @property
    def nbytes(self) -> int:
        return self._all.nbytes

    def seat(self, first: int, lengths: Sequence[int]) -> None:
        """Rows that will have at most so many tokens enter the slots from `first` on."""
        for slot, length in enumerate(lengths, first):
            self._pages.seat(slot, ring_pages(length, self._window))
        self._send()

    def leave(self, moves: Sequence[Move], active: int) -> None:
        """The rows of slots from `active` on go, or go on in others: no key is copied."""
        self._pages.leave(moves, active)
        self._send()

    def copy(self, moves: Sequence[Move]) -> None:
        """Have the targets begin with what the sources hold, as far as both have blocks."""
        pairs = [
            pair for it in moves for pair in zip(self._pages.of(it.source), self._pages.of(it.target), strict=False)
        ]
        if pairs:
            sources, targets = sent(list(zip(*pairs, strict=True)), self._all.device)
            self._all.index_copy_(2, targets, self._all.index_select(2, sources))

    def places(self, slots_N: Tensor, positions_N: Tensor) -> Tensor:
        """Where tokens at these positions are stored, [N]."""
        blocks_N = self._table[slots_N, positions_N // PAGE].to(torch.int64)
        return blocks_N * PAGE + positions_N % PAGE

    def write(self, block: int, at_N: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> None:
        """Store heads at these places, each of which is there once."""
        keys, values = self._all[:, block]
        keys.flatten(0, 1).index_copy_(0, at_N, k_NKD)
        values.flatten(0, 1).index_copy_(0, at_N, v_NKD)

    def step(self, _slots_N: Tensor, positions_N: Tensor, _longest: int) -> Step:
        """Of the tokens at a position of each of the first slots. The kernel reads on the device how many there are."""
        return Step(self._table[: positions_N.shape[0]], positions_N.to(torch.int32))

    def through(self, block: int, step: Step, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
        """Store a token of each of the first slots, and what it gathers, [N, H·D]."""
        keys, values = self._all[:, block]
        out = self._attend(
            q_NHD[:, None],
            keys,
            values,
            k=k_NKD[:, None],
            v=v_NKD[:, None],
            cache_seqlens=step.lengths,
            block_table=step.table,
            causal=True,
            window_size=(self._window - 1, 0) if self._window else (-1, -1),  # before and after itself; -1 is all
            softcap=self._softcap or 0.0,
        )
        assert isinstance(out, Tensor)  # a tuple only where sums of exponentials are asked for
        return out.flatten(1)

    def _send(self) -> None:
        self._table.copy_(sent(self._pages.table.copy(), self._table.device))

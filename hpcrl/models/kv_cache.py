"""Keys and values of the rows being generated, in slots allocated once. Knows no tokens and no schedule.

Where tokens see a window, a slot is a ring that holds just so many: position p lies at p modulo its capacity.
Shapes: S slots, C capacity (tokens of a slot), N rows, L cached length, H query heads, K key/value heads, D of a head.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from hpcrl.data.cached_lengths import capacity, rounded
from hpcrl.data.pages import PAGE, ring_pages
from hpcrl.data.slots import Move
from hpcrl.models.softcapped_attention import attend_cached


def spare_tokens(windows: Iterable[int], longest: int, paged: bool = False) -> int | None:
    """How many tokens a row may have beside its prompt before a token of this, which the one after the prompt sees, is
    written over in a block with one of these windows (0: none); None: however many."""
    rings = {
        (window, ring_pages(longest, window) * PAGE if paged else capacity(longest, window))
        for window in windows
        if 0 < window < longest
    }
    return min((size - window + 2 for window, size in rings if size < longest), default=None)


class KVCache:
    """Of so many blocks with one window, and heads of a rank, [2, blocks, S, K, C, D]; zero at first (what is masked
    must be finite). Row i of a batch lives in slot i."""

    def __init__(
        self,
        blocks: int,
        heads: Sequence[int],
        slots: int,
        longest: int,
        dtype: torch.dtype,
        device: torch.device,
        window: int = 0,
        softcap: float | None = None,
    ) -> None:
        """`heads` are K and D; `window` 0 sees all; a `softcap` is that of scores."""
        self.capacity = capacity(longest, window)
        self._window = window
        self._softcap = softcap
        self._dtype = dtype
        self._columns = torch.arange(self.capacity, device=device)
        count, dimensions = heads
        self._first = torch.arange(count, device=device) * self.capacity
        """Of each head, its first place in a slot."""
        self._all = torch.zeros((2, blocks, slots, count, self.capacity, dimensions), dtype=dtype, device=device)
        self._heads = list(zip(*self._all, strict=True))
        self._places = [(keys.flatten(0, 2), values.flatten(0, 2)) for keys, values in self._heads]

    @property
    def nbytes(self) -> int:
        return self._all.nbytes

    def places(self, slots_N: Tensor, positions_N: Tensor) -> Tensor:
        """Where the heads of tokens at these positions are stored, [N, K]."""
        slot_size = len(self._first) * self.capacity
        return (slots_N * slot_size + positions_N % self.capacity)[:, None] + self._first

    def mask(self, positions_N: Tensor, longest: int) -> Tensor:
        """What the token at a position of each of the first slots sees, once it is stored and no slot has more tokens
        than `longest`: zeros, and -inf for the rest of the first L places, [N, 1, 1, L]."""
        columns = self._columns[: rounded(min(longest, self.capacity))]
        if self._window:
            ages = (positions_N[:, None] - columns) % self.capacity
            unseen = ages > positions_N[:, None].clamp(max=self._window - 1)
        else:
            unseen = columns > positions_N[:, None]
        mask = torch.zeros(unseen.shape, dtype=self._dtype, device=unseen.device)
        return mask.masked_fill_(unseen, -torch.inf)[:, None, None, :]

    def write(self, block: int, at_NK: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> None:
        """Store heads at these places, each of which is there once."""
        keys, values = self._places[block]
        at = at_NK.flatten()
        keys.index_copy_(0, at, k_NKD.flatten(0, 1))
        values.index_copy_(0, at, v_NKD.flatten(0, 1))

    def attend(self, block: int, q_NHD: Tensor, mask_N11L: Tensor) -> Tensor:
        """What one new token of each of the first N slots gathers from the first L cached tokens, [N, H·D].

        The query heads that share a key head stand as rows of one small matrix, so no key is read twice.
        """
        keys, values = self._heads[block]
        rows, length = q_NHD.shape[0], mask_N11L.shape[-1]
        q = q_NHD.view(rows, keys.shape[1], -1, q_NHD.shape[-1])
        seen = keys[:rows, :, :length], values[:rows, :, :length]
        if self._softcap is not None:
            return attend_cached(q, *seen, mask_N11L, self._softcap).reshape(rows, -1)
        return scaled_dot_product_attention(q, *seen, mask_N11L).reshape(rows, -1)

    def step(self, slots_N: Tensor, positions_N: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """What all blocks of a model are told of the tokens at a position of each of the first slots, of which none has
        more than `longest` then."""
        return self.places(slots_N, positions_N), self.mask(positions_N, longest)

    def through(self, block: int, step: tuple[Tensor, Tensor], q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
        """Store a token of each of the first slots, and what it gathers, [N, H·D]."""
        at, mask = step
        self.write(block, at, k_NKD, v_NKD)
        return self.attend(block, q_NHD, mask)

    def seat(self, first: int, lengths: Sequence[int]) -> None:
        """A slot has room for any row."""

    def leave(self, moves: Sequence[Move], active: int) -> None:
        """The rows of slots from `active` on go, or go on in others."""
        self.copy(moves)

    def copy(self, moves: Sequence[Move]) -> None:
        """Copy whole slots; sources and targets are disjoint."""
        for move in moves:
            self._all[:, :, move.target] = self._all[:, :, move.source]

"""Keys and values of the rows being generated, in slots allocated once. Knows no tokens and no schedule.

Shapes: S slots, C capacity (tokens of a slot), N rows, L cached length, H query heads, K key/value heads, D of a head.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from hpcrl.data.slots import Move
from hpcrl.families.config import DecoderConfig

LENGTH_STEP = 16
"""Attention reads lengths that are multiples of this: on a CPU its bits then do not depend on how long others are."""


def rounded(length: int) -> int:
    """`length` rounded up to a multiple of LENGTH_STEP."""
    return -(-length // LENGTH_STEP) * LENGTH_STEP


class KVCache:
    """[2, blocks, S, C, K, D], zero at first (what is masked must be finite). Row i of a batch lives in slot i."""

    def __init__(
        self, config: DecoderConfig, slots: int, longest: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.capacity = rounded(longest)
        shape = (2, config.blocks, slots, self.capacity, config.kv_heads, config.head_dim)
        self._all = torch.zeros(shape, dtype=dtype, device=device)
        self._slots = [(keys, values) for keys, values in zip(*self._all, strict=True)]
        self._tokens = [(keys.flatten(0, 1), values.flatten(0, 1)) for keys, values in self._slots]
        self._heads = [(keys.transpose(1, 2), values.transpose(1, 2)) for keys, values in self._slots]

    def write(self, block: int, at_N: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> None:
        """Store rows at token places `slot · capacity + position`."""
        keys, values = self._tokens[block]
        keys.index_copy_(0, at_N, k_NKD)
        values.index_copy_(0, at_N, v_NKD)

    def attend(self, block: int, q_NHD: Tensor, mask_N11L: Tensor) -> Tensor:
        """What one new token of each of the first N slots gathers from the first L cached tokens, [N, H·D].

        The query heads that share a key head stand as rows of one small matrix, so no key is read twice.
        """
        keys, values = self._heads[block]
        rows, length = q_NHD.shape[0], mask_N11L.shape[-1]
        q = q_NHD.view(rows, keys.shape[1], -1, q_NHD.shape[-1])
        out = scaled_dot_product_attention(q, keys[:rows, :, :length], values[:rows, :, :length], mask_N11L)
        return out.reshape(rows, -1)

    def move(self, moves: Sequence[Move]) -> None:
        """Copy whole slots; sources and targets are disjoint."""
        for move in moves:
            self._all[:, :, move.target] = self._all[:, :, move.source]

"""Texts of different lengths side by side without padding. Knows lengths, not what the tokens are."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """Where each text of a packed batch lies.

    Callers give and get rows in their own order. Inside, texts stand sorted by length, so that attention may take all
    texts of one length as one rectangular batch: `order` and `inverse` are row indices into the caller's and into the
    sorted rows (None: already sorted). `positions`, `cu_seqlens` and `groups` describe the sorted order.
    """

    lengths: tuple[int, ...]
    positions: Tensor
    """int64 [T]: 0, 1, … within each text."""
    cu_seqlens: Tensor
    """int32 [texts + 1]: where each text begins, and the total."""
    groups: tuple[tuple[int, int], ...]
    """(number of texts, their length), in order."""
    order: Tensor | None
    inverse: Tensor | None

    @staticmethod
    def of(lengths: Sequence[int], device: torch.device | str = "cpu") -> "Packing":
        """Pack texts of these lengths. Raises ValueError where one is empty."""
        if not lengths or min(lengths) < 1:
            raise ValueError(f"A packed batch needs texts of at least one token; the lengths are {list(lengths)}.")
        given = torch.tensor(lengths)
        sizes, ranks = given.sort(stable=True)
        ends = sizes.cumsum(0)
        positions = counting(sizes)
        order = inverse = None
        if not torch.equal(given, sizes):
            order = (given.cumsum(0) - given)[ranks].repeat_interleave(sizes) + positions
            inverse = torch.empty_like(order).index_copy_(0, order, torch.arange(order.numel()))
        distinct, counts = sizes.unique_consecutive(return_counts=True)
        return Packing(
            lengths=tuple(lengths),
            positions=positions.to(device),
            cu_seqlens=torch.cat([ends.new_zeros(1), ends]).to(torch.int32).to(device),
            groups=tuple(zip(counts.tolist(), distinct.tolist(), strict=True)),
            order=None if order is None else order.to(device),
            inverse=None if inverse is None else inverse.to(device),
        )

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    def last_rows(self) -> Tensor:
        """The row of each text's last token, in the caller's order; int64 [texts]."""
        return (torch.tensor(self.lengths).cumsum(0) - 1).to(self.positions.device)

    def tail_rows(self, counts: Sequence[int]) -> Tensor:
        """The rows of each text's last `counts[text]` tokens, in the caller's order.

        Pack prompt + response without its last token and ask for the response's length: these rows' hidden states
        predict the response's tokens, and give the values before them.
        """
        tails = torch.tensor(counts)
        begins = torch.tensor(self.lengths).cumsum(0) - tails
        rows = begins.repeat_interleave(tails) + counting(tails)
        return rows.to(self.positions.device)


def counting(sizes: Tensor) -> Tensor:
    """0, 1, … size - 1 for each size, one after the other."""
    ends = sizes.cumsum(0)
    return torch.arange(int(ends[-1]), device=sizes.device) - (ends - sizes).repeat_interleave(sizes)

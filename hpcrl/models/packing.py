"""Texts of different lengths side by side without padding. Knows lengths, not what the tokens are."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

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
        ranks = sorted(range(len(lengths)), key=lambda text: lengths[text])
        ordered = [lengths[text] for text in ranks]
        starts = [0, *accumulate(ordered)]
        sizes = torch.tensor(ordered)
        begins = torch.tensor(starts[:-1])
        positions = torch.arange(starts[-1]) - begins.repeat_interleave(sizes)
        order, inverse = _permutation(lengths, ranks, positions, sizes, device)
        return Packing(
            lengths=tuple(lengths),
            positions=positions.to(device),
            cu_seqlens=torch.tensor(starts, dtype=torch.int32, device=device),
            groups=tuple((len(list(texts)), length) for length, texts in groupby(ordered)),
            order=order,
            inverse=inverse,
        )

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    def last_rows(self) -> Tensor:
        """The row of each text's last token, in the caller's order; int64 [texts]."""
        return torch.tensor([end - 1 for end in accumulate(self.lengths)], device=self.positions.device)

    def tail_rows(self, counts: Sequence[int]) -> Tensor:
        """The rows of each text's last `counts[text]` tokens, in the caller's order.

        Pack prompt + response without its last token and ask for the response's length: these rows' hidden states
        predict the response's tokens, and give the values before them.
        """
        rows = [torch.arange(end - count, end) for end, count in zip(accumulate(self.lengths), counts, strict=True)]
        return torch.cat(rows).to(self.positions.device)


def _permutation(
    lengths: Sequence[int], ranks: list[int], positions: Tensor, sizes: Tensor, device: torch.device | str
) -> tuple[Tensor | None, Tensor | None]:
    if ranks == list(range(len(lengths))):
        return None, None
    begins = torch.tensor([0, *accumulate(lengths)][:-1])[torch.tensor(ranks)]
    order = begins.repeat_interleave(sizes) + positions
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel())
    return order.to(device), inverse.to(device)

"""Texts of different lengths side by side without padding. Knows lengths, not what the tokens are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, groupby, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from hpcrl.models.transfers import sent


class Rectangle(NamedTuple):
    """Texts of one length after prefixes of one length, one after another."""

    first: int
    """The row where they begin, in the sorted order."""
    texts: int
    length: int
    before: int
    """Tokens of the prefix of each; 0 where they stand for themselves."""

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + self.texts * self.length)


class Keys(NamedTuple):
    """What the queries of each text see: its prefix and then itself, text after text in the sorted order."""

    rows: Tensor
    """int64: rows of the sorted order."""
    cu_seqlens: Tensor
    """int32 [texts + 1]: where those of each text begin, and the total."""
    longest: int


class Readers(NamedTuple):
    """The rows that see a prefix, prefix after prefix."""

    first: int
    """The first of them in the sorted order; they stand behind all others."""
    order: Tensor
    """int64: the same rows, less `first`, by prefix."""
    inverse: Tensor
    prefixes: tuple[tuple[range, slice], ...]
    """The rows of each prefix in the sorted order, and which rows by prefix see it."""


@dataclass(frozen=True)
class Packing:
    """Where each text of a packed batch lies, and which other text, its prefix, comes before it.

    Callers give and get rows in their own order. Inside, texts stand sorted by their prefix's length, those without one
    first, and then by their own, so that attention may take all texts of one length as one rectangular batch: `order`
    and `inverse` are row indices into the caller's and into the sorted rows (None: already sorted). `positions`,
    `cu_seqlens`, `groups` and `prefixes` describe the sorted order.
    """

    lengths: tuple[int, ...]
    positions: Tensor
    """int64 [T]: 0, 1, … within each text and what comes before it."""
    cu_seqlens: Tensor
    """int32 [texts + 1]: where each text begins, and the total."""
    groups: tuple[Rectangle, ...]
    prefixes: tuple[range, ...]
    """The rows of each text's prefix; none where it stands for itself."""
    order: Tensor | None
    inverse: Tensor | None

    @staticmethod
    def of(
        lengths: Sequence[int], device: torch.device | str = "cpu", prefixes: Sequence[int] | None = None
    ) -> "Packing":
        """Pack texts of these lengths, each after the text of number `prefixes[text]` (-1: none), itself without one.

        Raises ValueError where a text is empty.
        """
        if not lengths or min(lengths) < 1:
            raise ValueError(f"A packed batch needs texts of at least one token; the lengths are {list(lengths)}.")
        device = torch.device(device)
        given, owners = torch.tensor(lengths), torch.tensor(prefixes or [-1] * len(lengths))
        read = torch.where(owners < 0, 0, given[owners])
        ranks = given.argsort(stable=True)
        ranks = ranks[read[ranks].argsort(stable=True)]
        sizes, before = given[ranks], read[ranks]
        ends = sizes.cumsum(0)
        positions = counting(sizes)
        order = inverse = None
        if not torch.equal(ranks, torch.arange(len(lengths))):
            order = (given.cumsum(0) - given)[ranks].repeat_interleave(sizes) + positions
            inverse = torch.empty_like(order).index_copy_(0, order, torch.arange(order.numel()))
        begins = torch.empty_like(ends).index_copy_(0, ranks, ends - sizes).tolist()
        rows = [range(begins[i], begins[i] + lengths[i]) if i >= 0 else range(0) for i in owners[ranks].tolist()]
        return Packing(
            lengths=tuple(lengths),
            positions=sent(positions + before.repeat_interleave(sizes), device),
            cu_seqlens=sent(torch.cat([ends.new_zeros(1), ends]).to(torch.int32), device),
            groups=tuple(_rectangles(sizes.tolist(), before.tolist())),
            prefixes=tuple(rows),
            order=None if order is None else sent(order, device),
            inverse=None if inverse is None else sent(inverse, device),
        )

    @property
    def shares(self) -> bool:
        """Whether a text has a prefix."""
        return self.groups[-1].before > 0

    @cached_property
    def farthest(self) -> int:
        """The most tokens that one sees, itself included."""
        return max(group.before + group.length for group in self.groups)

    @cached_property
    def keys(self) -> Keys:
        texts = zip(self.prefixes, pairwise(self.cu_seqlens.tolist()), strict=True)
        seen = [[*prefix, *range(*own)] for prefix, own in texts]
        device, ends = self.positions.device, torch.tensor([0, *map(len, seen)]).cumsum(0)
        rows = torch.tensor(list(chain.from_iterable(seen)))
        return Keys(rows.to(device), ends.to(torch.int32).to(device), max(map(len, seen)))

    @cached_property
    def readers(self) -> Readers:
        own = [range(*bounds) for bounds in pairwise(self.cu_seqlens.tolist())]
        by_prefix: dict[range, list[range]] = {}
        for prefix, rows in zip(self.prefixes, own, strict=True):
            if prefix:
                by_prefix.setdefault(prefix, []).append(rows)
        first = next(group.first for group in self.groups if group.before)
        order = torch.tensor([row - first for texts in by_prefix.values() for rows in texts for row in rows])
        ends = [0, *accumulate(sum(map(len, texts)) for texts in by_prefix.values())]
        cuts = [slice(*bounds) for bounds in pairwise(ends)]
        inverse = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order)))
        device = self.positions.device
        return Readers(first, order.to(device), inverse.to(device), tuple(zip(by_prefix, cuts, strict=True)))

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    def last_rows(self) -> Tensor:
        """The row of each text's last token, in the caller's order; int64 [texts]."""
        return sent(torch.tensor(self.lengths).cumsum(0) - 1, self.positions.device)

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


def _rectangles(lengths: list[int], before: list[int]) -> Iterator[Rectangle]:
    """Sorted texts that are alike together."""
    first = 0
    for (length, prefix), alike in groupby(zip(lengths, before, strict=True)):
        texts = sum(1 for _ in alike)
        yield Rectangle(first, texts, length, prefix)
        first += texts * length

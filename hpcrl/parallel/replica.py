"""The groups in which a rank works on its replica of a model: one for each axis of the layout, and that of its part."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from msgspec.msgpack import decode, encode

from hpcrl.parallel.context import ParallelContext
from hpcrl.parallel.group import Group
from hpcrl.placement.layouts import Layout, Ranks
from hpcrl.placement.shards import WHOLE, Cut, cut_of

CPU = torch.device("cpu")
AXES: tuple[Literal["tp", "pp", "dp"], ...] = ("tp", "pp", "dp")


@dataclass(frozen=True)
class Readers:
    """All ranks of a replica, who read its files together: each a share, which then goes to whoever has some of it."""

    ranks: Ranks
    cuts: tuple[Cut, ...]
    """What each of them has of the model."""
    nodes: tuple[int, ...]
    """That of every worker."""
    group: Group
    """All workers, or at least these ranks: messages go in it."""

    @cached_property
    def index(self) -> int:
        """Which of them this rank is."""
        return self.ranks.index(self.rank)

    @property
    def rank(self) -> int:
        return self.group.ranks[self.group.index]

    @property
    def cut(self) -> Cut:
        """What this rank has."""
        return self.cuts[self.index]


def reads_alone(cut: Cut = WHOLE, device: torch.device = CPU) -> Readers:
    """Somebody who asks nobody."""
    return Readers((0,), (cut,), (0,), Group((0,), 0, device))


@dataclass(frozen=True)
class ReplicaGroups:
    """This rank's share of the model, and who it works with. Along an axis a rank's index is its number on it.

    All ranks of a block have the same rows; ranks of one data-parallel group hold the same share of the model.
    """

    cut: Cut
    dp: Group
    tp: Group
    pp: Group
    block: Group
    """All ranks of this rank's part, in the order of the layout."""
    readers: Readers

    @property
    def head(self) -> int:
        """The index, in the block, of the rank that gets rows and has results."""
        return self.block.size - self.cut.tp

    def total(self, vector: torch.Tensor) -> torch.Tensor:
        """The sum over parts, in rank order, of what all tensor ranks of each part's last stage have alike."""
        total = self.dp.total(vector)
        if self.pp.size == 1:
            return total
        known = total.to(self.pp.device, copy=True)
        self.pp.broadcast(known, self.cut.pp - 1)
        return known.to(vector.device)

    def total_of_shares(self, vector: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks of the replica, in one order on all of them."""
        return self.pp.total(self.tp.total(self.dp.total(vector)))

    def told_by_all(self, data: bytes) -> tuple[bytes, ...]:
        """What each rank of the replica has, on all, in the order of its ranks."""
        of_tensor = encode(self.dp.told_by_all(data))
        of_stages = self.pp.told_by_all(encode(self.tp.told_by_all(of_tensor)))
        by_stage = [[_listed(each) for each in _listed(of_stage)] for of_stage in of_stages]
        return tuple(of_dp[part] for of_tp in by_stage for part in range(self.dp.size) for of_dp in of_tp)


def _listed(data: bytes) -> list[bytes]:
    return decode(data, type=list[bytes])


def sharing(layout: Layout, ranks: Ranks) -> Iterator[Ranks]:
    """The ranks of every group of a replica, in an order that all workers have alike."""
    for axis in AXES:
        yield from layout.groups(axis, ranks)
    for part in range(layout.dp):
        yield layout.data_part(part, ranks)


def groups_of(context: ParallelContext, layout: Layout, ranks: Ranks) -> ReplicaGroups:
    """This rank's groups in a replica, which have been formed."""
    index = ranks.index(context.rank)
    tp, pp, dp = (
        context.group(next(group for group in layout.groups(axis, ranks) if context.rank in group)) for axis in AXES
    )
    block = context.group(layout.data_part(index // layout.tp % layout.dp, ranks))
    cuts = tuple(cut_of(layout, other) for other in range(layout.size))
    readers = Readers(ranks, cuts, context.nodes, context.group(context.everyone))
    return ReplicaGroups(readers.cut, dp, tp, pp, block, readers)


def over_data(group: Group) -> ReplicaGroups:
    """Those of a replica that each rank of `group` holds whole."""
    rank = group.ranks[group.index]
    alone = Group((rank,), rank, group.device)
    readers = Readers(group.ranks, (WHOLE,) * group.size, (0,) * (max(group.ranks) + 1), group)
    return ReplicaGroups(WHOLE, group, alone, alone, alone, readers)

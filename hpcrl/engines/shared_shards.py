"""A cut's shards as the ranks of a replica read them together: every element by one of them, who sends it to all others
that have it, as `placement.shared_shards` plans it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import torch

from hpcrl.durable.shards import Shard, ShardFile, placed_spans, span_state
from hpcrl.engines.checksum import added, checksums, in_all
from hpcrl.engines.shard import CopiedShard
from hpcrl.families.places import Span
from hpcrl.parallel.moving import carry_out
from hpcrl.parallel.replica import ReplicaGroups
from hpcrl.placement.holdings import NOTHING, Holding, holding
from hpcrl.placement.moving import planned
from hpcrl.placement.shared_shards import Stretch, shared_reading, wanted_of


class SharedShards:
    """What this rank is to have of the shards, `own`: what they say of themselves, then pieces that fit into memory.

    All ranks go through it to its end.
    """

    def __init__(
        self, shards: Sequence[ShardFile], own: Sequence[Span], groups: ReplicaGroups, summed: Sequence[str] = ()
    ) -> None:
        """`summed`: the arrays of which `digest` is to be known."""
        self._shards, self._groups, self._readers = shards, groups, groups.readers
        self._summed, self._sums = summed, [0] * len(summed)
        told = groups.told_by_all(msgspec.msgpack.encode(span_state(own)))
        self._wanted = [placed_spans(msgspec.msgpack.decode(data)) for data in told]
        self._reading = shared_reading([shard.spans for shard in shards], self._wanted)

    def __len__(self) -> int:
        return len(self._shards) + len(self._reading.alone[self._readers.index]) + len(self._reading.rounds)

    def __iter__(self) -> Iterator[Shard]:
        """Raises DamagedFileError, and PeerLostError."""
        yield from (replace(shard, spans=()) for shard in self._shards)
        for stretch in self._reading.alone[self._readers.index]:
            yield CopiedShard(self._read(stretch), stretch.spans, self._shards[stretch.shard].state)
        for round_ in self._reading.rounds:
            yield self._spread(round_)

    def _read(self, stretch: Stretch) -> dict[str, np.ndarray]:
        shard = self._shards[stretch.shard]
        arrays = {array: shard.read(array, stretch.start, stretch.stop) for array in shard.arrays}
        if self._summed:
            tensors = [torch.from_numpy(arrays[array]) for array in self._summed]
            self._sums = added(self._sums, checksums(tensors, stretch.spans))
        return arrays

    def digest(self) -> str:
        """Once all is read: the checksums of what it was, over all ranks, and the number of updates."""
        return f"{in_all(self._sums, self._groups.total_of_shares)}{self._shards[0].state['updates']:08x}"

    def _spread(self, round_: Sequence[Stretch | None]) -> CopiedShard:
        """What this rank is to have of what all read in a round."""
        readers, some = self._readers, self._shards[0]
        mine = round_[readers.index]
        read = {} if mine is None else self._read(mine)
        have: list[Holding] = [NOTHING] * len(readers.nodes)
        want = list(have)
        spans = [wanted_of(round_, wanted) for wanted in self._wanted]
        for rank, stretch, there in zip(readers.ranks, round_, spans, strict=True):
            have[rank] = NOTHING if stretch is None else holding(stretch.spans)
            want[rank] = holding(there)
        own = spans[readers.index]
        view = planned(have, want, readers.nodes, readers.rank)
        arrays, device = {}, readers.group.device
        for array in some.arrays:
            source = torch.from_numpy(read.pop(array, np.empty(0, some.dtype(array)))).to(device)
            target = source.new_zeros(sum(span.place.numel for span in own))
            carry_out(view, source, target, readers.group, parties=len(readers.ranks))
            arrays[array] = target.cpu().numpy()
        return CopiedShard(arrays, own, some.state)

"""A model's weights in at least fp32, of which each data-parallel rank has a slice.

Shape legend: S elements of this rank's slice.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch

from hpcrl.durable.checkpoints import DamagedCheckpointError
from hpcrl.durable.shards import ShardFile
from hpcrl.engines.checksum import digest_of, digest_of_parts, runs
from hpcrl.engines.chunks import chunks
from hpcrl.engines.memory import ParameterMemory
from hpcrl.engines.release import on_host
from hpcrl.engines.shard import CopiedShard, Shard, read_runs
from hpcrl.engines.shared_shards import SharedShards
from hpcrl.engines.slices import Slice
from hpcrl.errors import InternalError
from hpcrl.families.places import Span, common, packed
from hpcrl.parallel.replica import ReplicaGroups

Copied = Callable[[torch.Tensor], torch.Tensor]
"""A tensor, wherever it is, as a copy in host memory."""


class ShardedMasters:
    """Owns the master weights of its slice, and keeps the model equal to the masters of all ranks.

    `updates` counts how often they have changed. What another rank of the block owns has a master here too, which
    changes as its owner's does: gradients are equal wherever an element is. So nothing has to be sent before the next
    forward pass; but the owner alone counts, and saves. Knows neither the model nor what changes its masters.
    """

    def __init__(self, name: str, slice_: Slice, groups: ReplicaGroups) -> None:
        self._name = name
        self._slice = slice_
        self._groups = groups
        self.spans = slice_.spans
        self.master_S = slice_.master_S
        self.updates = 0

    @property
    def parts(self) -> Mapping[str, torch.Tensor]:
        """What a shard has of the slice."""
        return {"master": self.master_S}

    def begin_from(self, parameter: torch.Tensor, offset: int) -> None:
        """Let the masters of a parameter, of which the model's memory from `offset` on holds a rounded copy, begin as
        it is."""
        self._slice.begin_from(parameter, offset)

    @torch.no_grad()
    def blend(self, theirs_S: torch.Tensor, decay: float) -> None:
        """master ← decay · master + (1 − decay) · another's master."""
        for piece in chunks(self.master_S):
            self.master_S[piece].mul_(decay).add_(theirs_S[piece].to(self.master_S), alpha=1.0 - decay)
        self.updates += 1
        self._slice.publish()

    def snapshot(self, copied: Copied = on_host) -> CopiedShard:
        """Copies of what it owns of its slice."""
        copies = {part: copied(tensor) for part, tensor in self.parts.items()}
        owned = tuple(span for span in self.spans if span.owned)
        if len(owned) == len(self.spans):
            return CopiedShard({part: copy.numpy() for part, copy in copies.items()}, owned, {"updates": self.updates})
        kept = packed(owned)
        for part, whole in copies.items():
            copies[part] = whole.new_empty(sum(span.place.numel for span in kept))
            for ours, theirs in zip(kept, owned, strict=True):
                runs(copies[part], ours).copy_(runs(whole, theirs))
        return CopiedShard({part: copy.numpy() for part, copy in copies.items()}, kept, {"updates": self.updates})

    @torch.no_grad()
    def load(self, shards: Iterable[Shard]) -> bool:
        """Take all that the slice has out of shards of any layout, reading nothing else of them.

        Returns whether they are of the very types of the parts, so that no bit was rounded. Raises
        DamagedCheckpointError where they lack some of it.
        """
        wanted: defaultdict[str, list[Span]] = defaultdict(list)
        for span in self.spans:
            wanted[span.place.parameter].append(span)
        filled, exact = 0, True
        for shard in shards:
            self.updates = shard.state["updates"]
            exact &= self.takes_exactly(shard)
            filled += sum(self._take(shard, theirs, wanted[theirs.place.parameter]) for theirs in shard.spans)
        if filled != (needed := sum(span.place.numel for span in self.spans)):
            raise DamagedCheckpointError(
                f"{self._name}: the checkpoint's shards hold {filled} of the {needed} elements that this rank has"
            )
        self._slice.publish()
        return exact

    def takes_exactly(self, shard: Shard) -> bool:
        """Whether it is of the very types of the parts, so that no bit is rounded."""
        return all(shard.dtype(part).itemsize == tensor.itemsize for part, tensor in self.parts.items())

    def digest(self) -> str:
        """Checksums of all parts over all ranks, and the number of updates."""
        summed = digest_of(list(self.parts.values()), self.spans, self._groups.total_of_shares)
        return f"{summed}{self.updates:08x}"

    def digest_of(self, shards: Sequence[Shard]) -> str:
        """As `digest`, of what shards hold; each rank reads some of them, one span at a time."""
        names, groups = list(self.parts), self._groups
        index = (groups.pp.index * groups.dp.size + groups.dp.index) * groups.tp.size + groups.tp.index
        mine = shards[index :: groups.pp.size * groups.dp.size * groups.tp.size]
        read = (
            ([torch.from_numpy(shard.read(name, span.offset, span.stop)) for name in names], [span.moved(-span.offset)])
            for shard in mine
            for span in shard.spans
        )
        summed = digest_of_parts(read, len(names), groups.total_of_shares)
        return f"{summed}{shards[0].state['updates']:08x}"

    def parameters_digest(self) -> str:
        """That of what the model computes with, over all ranks; each looks at its slice."""
        return digest_of([self._slice.weights_S], self.spans, self._groups.total_of_shares)

    def tensors(self) -> list[torch.Tensor]:
        """All that is held on the model's device beside its own memory."""
        if self._slice.offloaded:
            return []
        return [tensor for part, tensor in self.parts.items() if part != "master" or not self._slice.is_the_model]

    def _take(self, shard: Shard, theirs: Span, wanted: Iterable[Span]) -> int:
        """Copy what a span of a shard has of what is wanted; how much that is."""
        found = [(place, span) for span in wanted for place in common(theirs.place, span.place)]
        for part, tensor in self.parts.items():
            for place, ours in found:
                for here, read in read_runs(shard, part, theirs.at(place), ours.at(place)):
                    runs(tensor, here).copy_(torch.from_numpy(read))
        return sum(place.numel for place, _ in found)


class MasterState:
    """The masters of one role's model, and whatever else is saved with them: what its checkpoints hold."""

    def __init__(self, role: str, memory: ParameterMemory, masters: ShardedMasters) -> None:
        self._role = role
        self._memory = memory
        self._masters = masters

    def begin_from(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Hand on what fills the model. Masters take the parameters as they come, not rounded to the model's type;
        what is frozen has none."""
        for name, tensor in parameters:
            yield name, tensor
            # The model has found name and shape right before it asks for the next one.
            if name in self._memory.offsets:
                self._masters.begin_from(tensor, self._memory.offsets[name])

    @property
    def masters(self) -> torch.Tensor:
        """This rank's slice of them."""
        return self._masters.master_S

    def shared(self, shards: Sequence[ShardFile], groups: ReplicaGroups) -> SharedShards:
        """What is to be loaded of them, read by all ranks together, and summed up where it is rounded."""
        summed = () if all(map(self._masters.takes_exactly, shards)) else list(self._masters.parts)
        return SharedShards(shards, self._masters.spans, groups, summed)

    def blend(self, theirs: torch.Tensor, decay: float) -> None:
        """Keep `decay` of the masters, and take the rest of others that lie as they do. Raises InternalError."""
        if len(theirs) != len(self.masters):
            raise InternalError(f"{self._role} has {len(self.masters)} masters here, and {len(theirs)} are blended in.")
        self._masters.blend(theirs, decay)

    def snapshot(self, copied: Copied = on_host) -> CopiedShard:
        return self._masters.snapshot(copied).with_state(shapes=self._memory.shapes)

    def load(self, shards: Iterable[Shard]) -> bool:
        return self._masters.load(self._checked(shard) for shard in shards)

    def digest(self) -> str:
        return self._masters.digest()

    def digest_of(self, shards: Sequence[Shard]) -> str:
        return self._masters.digest_of(shards)

    def parameters_digest(self) -> str:
        return self._masters.parameters_digest()

    def tensors(self) -> list[torch.Tensor]:
        """All that is held beside the model."""
        return self._masters.tensors()

    def _checked(self, shard: Shard) -> Shard:
        written, own = shard.state["shapes"], self._memory.shapes
        if written != own:
            raise InternalError(
                f"{self._role}: the checkpoint's parameters are laid out as {written}, the model's as {own}.",
                f"Put the model back that {self._role}.path had when the run began, and accept it: `hpcrl resume RUN "
                f"--accept-changed {self._role}.path`.",
            )
        return shard

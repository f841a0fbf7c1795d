"""A model's weights in at least fp32 over a flat buffer, cut into one contiguous slice per data-parallel rank.

Shape legend: N elements of the flat buffer; S of this rank's slice.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from hpcrl.engines.checksum import MASK, checksum, signed
from hpcrl.engines.chunks import chunks
from hpcrl.engines.engine import Shard
from hpcrl.engines.flat import FlatParameters
from hpcrl.engines.layout import ParameterLayout
from hpcrl.errors import InternalError
from hpcrl.parallel.context import Group


class ShardedMasters:
    """Owns the master weights of its slice, and keeps `flat` equal to the masters of all ranks.

    Where `flat` has the masters' type, the master is a view of it. `updates` counts how often they have changed. Knows
    neither the model nor what changes them.
    """

    def __init__(self, name: str, flat_N: torch.Tensor, group: Group) -> None:
        self._name = name
        self._flat_N = flat_N
        self._group = group
        self._offset, length = group.bounds(len(flat_N))
        own = flat_N[self._offset : self._offset + length]
        self.master_S = own if flat_N.dtype == torch.float64 else own.float()
        self.updates = 0

    @property
    def parts(self) -> Mapping[str, torch.Tensor]:
        """What a shard has of the slice."""
        return {"master": self.master_S}

    def begin_from(self, parameter: torch.Tensor, offset: int) -> None:
        """Let the masters of a parameter, of which `flat` from `offset` on holds a rounded copy, begin as it is."""
        start, stop = self._overlap(offset, parameter.numel())
        if start < stop and not self._shares_memory:
            own = self.master_S[start - self._offset : stop - self._offset]
            own.copy_(parameter.reshape(-1)[start - offset : stop - offset])

    @torch.no_grad()
    def blend(self, source: "ShardedMasters", decay: float) -> None:
        """master ← decay · master + (1 − decay) · the source's master. Both are cut alike."""
        for piece in chunks(self.master_S):
            theirs = source.master_S[piece].to(self.master_S)
            self.master_S[piece].mul_(decay).add_(theirs, alpha=1.0 - decay)
        self.updates += 1
        self._publish()

    def snapshot(self) -> Shard:
        """Copies of the own slice, and where it lies in the whole."""
        arrays = {part: tensor.to("cpu", copy=True).numpy() for part, tensor in self.parts.items()}
        place = {"offset": self._offset, "length": len(self.master_S), "total": len(self._flat_N)}
        return arrays, {**place, "updates": self.updates}

    def load(self, shards: Iterable[Shard]) -> None:
        """Take what overlaps the own slice out of each shard, whatever the number of ranks that wrote them."""
        filled = 0
        for arrays, state in shards:
            self._check_total(state)
            self.updates = state["updates"]
            filled += self._copy_overlap(arrays, state["offset"], state["length"])
        if filled != len(self.master_S):
            raise InternalError(
                f"{self._name}: the checkpoint's shards hold {filled} of the {len(self.master_S)} elements from "
                f"{self._offset} on; it needs all shards of the role"
            )
        self._publish()

    def digest(self) -> str:
        """Checksums of all parts over all ranks, and the number of updates."""
        sums = torch.tensor([signed(checksum(tensor, self._offset)) for tensor in self.parts.values()])
        whole = "".join(f"{number & MASK:016x}" for number in self._group.total(sums).tolist())
        return f"{whole}{self.updates:08x}"

    def tensors(self) -> list[torch.Tensor]:
        """All that is held beside the flat buffer."""
        return [tensor for part, tensor in self.parts.items() if part != "master" or not self._shares_memory]

    @property
    def _shares_memory(self) -> bool:
        return self.master_S.dtype == self._flat_N.dtype

    def _publish(self) -> None:
        """Bring the masters of all ranks into the flat buffer."""
        if self._shares_memory and self._group.size == 1:
            return
        self._group.all_gather(self.master_S.to(self._flat_N.dtype), self._flat_N)

    def _check_total(self, state: Mapping[str, Any]) -> None:
        if state["total"] != len(self._flat_N):
            raise InternalError(
                f"{self._name}: the checkpoint is of {state['total']} elements, the model has {len(self._flat_N)}; "
                "it belongs to another model"
            )

    def _copy_overlap(self, arrays: Mapping[str, np.ndarray], offset: int, length: int) -> int:
        start, stop = self._overlap(offset, length)
        if stop <= start:
            return 0
        for part, tensor in self.parts.items():
            source = torch.from_numpy(arrays[part][start - offset : stop - offset])
            tensor[start - self._offset : stop - self._offset].copy_(source)
        return stop - start

    def _overlap(self, offset: int, length: int) -> tuple[int, int]:
        """First element, and that after the last, of what the interval has in common with the own slice."""
        return max(offset, self._offset), min(offset + length, self._offset + len(self.master_S))


class MasterState:
    """The masters of one role's model, and whatever else is saved with them: what its checkpoints hold."""

    def __init__(self, role: str, memory: FlatParameters, masters: ShardedMasters) -> None:
        self._role = role
        self._memory = memory
        self._masters = masters

    def begin_from(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Hand on what fills the model. Masters take the parameters as they come, not rounded to the model's type."""
        offsets = {parameter.name: offset for parameter, offset in self._memory.layout.spans()}
        for name, tensor in parameters:
            yield name, tensor
            # The model has found name and shape right before it asks for the next one.
            self._masters.begin_from(tensor, offsets[name])

    def blend(self, source: "MasterState", decay: float) -> None:
        """Keep `decay` of the own parameters, and take the rest from a model of the same shape."""
        theirs, own = fingerprint(source._memory.layout), fingerprint(self._memory.layout)
        if theirs != own:
            raise InternalError(
                f"{self._role}'s parameters are laid out as {own}, those of {source._role}, which it blends in, as "
                f"{theirs}."
            )
        self._masters.blend(source._masters, decay)

    def snapshot(self) -> Shard:
        arrays, numbers = self._masters.snapshot()
        return arrays, {**numbers, "layout": fingerprint(self._memory.layout)}

    def load(self, shards: Iterable[Shard]) -> None:
        self._masters.load(self._checked(shard) for shard in shards)

    def digest(self) -> str:
        return self._masters.digest()

    def tensors(self) -> list[torch.Tensor]:
        """All that is held beside the model."""
        return self._masters.tensors()

    def _checked(self, shard: Shard) -> Shard:
        written, own = shard[1]["layout"], fingerprint(self._memory.layout)
        if written != own:
            raise InternalError(
                f"{self._role}: the checkpoint's parameters are laid out as {written}, the model's as {own}.",
                f"Put the model back that {self._role}.path had when the run began, and accept it: `hpcrl resume RUN "
                f"--accept-changed {self._role}.path`.",
            )
        return shard


def fingerprint(layout: ParameterLayout) -> str:
    text = "\n".join(f"{parameter.name} {parameter.shape} {offset}" for parameter, offset in layout.spans())
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

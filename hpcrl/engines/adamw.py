"""AdamW over a flat buffer, its state cut into one contiguous slice per data-parallel rank (ZeRO stage 1).

Loshchilov & Hutter 2019. Shape legend: N elements of the flat buffer; S of this rank's slice.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hpcrl.config.model import OptimizerConfig
from hpcrl.engines.checksum import MASK, checksum, signed
from hpcrl.engines.chunks import chunks
from hpcrl.engines.engine import Shard
from hpcrl.errors import InternalError
from hpcrl.parallel.context import Group

Span = tuple[int, int]
"""(offset, length) in the flat buffer."""


class ShardedAdamW:
    """Owns the master weights and both moments of its slice, at least fp32, and keeps `flat` equal to the masters.

    Where `flat` has the masters' type, the master is a view of it. Knows neither the model nor how its gradients come
    about; `undecayed` are the intervals without weight decay.
    """

    def __init__(
        self, name: str, flat_N: torch.Tensor, undecayed: Sequence[Span], group: Group, config: OptimizerConfig
    ) -> None:
        self._name = name
        self._flat_N = flat_N
        self._group = group
        self._config = config
        self._offset, length = group.bounds(len(flat_N))
        own = flat_N[self._offset : self._offset + length]
        self.master_S = own if flat_N.dtype == torch.float64 else own.float()
        self.first_S = torch.zeros_like(self.master_S)
        self.second_S = torch.zeros_like(self.master_S)
        self.updates = 0
        self._decayed = _complement(undecayed, self._offset, length)

    @property
    def _parts(self) -> Mapping[str, torch.Tensor]:
        return {"master": self.master_S, "first": self.first_S, "second": self.second_S}

    def settle(self, config: OptimizerConfig) -> None:
        """Make updates from now on with these hyper-parameters; what is remembered stays."""
        self._config = config

    def begin_from(self, parameter: torch.Tensor, offset: int) -> None:
        """Let the masters of a parameter, of which `flat` from `offset` on holds a rounded copy, begin as it is."""
        start, stop = self._overlap(offset, parameter.numel())
        if start < stop and not self._shares_memory:
            own = self.master_S[start - self._offset : stop - self._offset]
            own.copy_(parameter.reshape(-1)[start - offset : stop - offset])

    def step(self, gradient_N: torch.Tensor, learning_rate: float) -> float:
        """One update with the sum of all ranks' gradients; their norm before clipping, the same on all ranks.

        Nothing changes where it is not finite. Overwrites `gradient_N`.
        """
        own = self._group.reduce_scatter(gradient_N)
        norm = self._norm(own)
        if not math.isfinite(norm):
            return norm
        if 0 < self._config.grad_clip < norm:
            own.mul_(self._config.grad_clip / norm)
        self._update(own, learning_rate)
        self._publish()
        return norm

    def snapshot(self) -> Shard:
        """Copies of the own slice, and where it lies in the whole."""
        arrays = {part: tensor.to("cpu", copy=True).numpy() for part, tensor in self._parts.items()}
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
        """Checksums of masters and moments over all ranks, and the number of updates."""
        sums = torch.tensor([signed(checksum(tensor, self._offset)) for tensor in self._parts.values()])
        whole = "".join(f"{number & MASK:016x}" for number in self._group.total(sums).tolist())
        return f"{whole}{self.updates:08x}"

    def tensors(self) -> list[torch.Tensor]:
        """All that is held beside the flat buffer."""
        moments = [self.first_S, self.second_S]
        return moments if self._shares_memory else [self.master_S, *moments]

    @property
    def _shares_memory(self) -> bool:
        return self.master_S.dtype == self._flat_N.dtype

    def _norm(self, own_S: torch.Tensor) -> float:
        square = torch.zeros(1, dtype=torch.float64, device=own_S.device)
        for piece in chunks(own_S):
            square += own_S[piece].double().square().sum()
        return math.sqrt(float(self._group.total(square)))

    def _update(self, gradient_S: torch.Tensor, learning_rate: float) -> None:
        beta1, beta2 = self._config.betas
        self.updates += 1
        for start, length in self._decayed:
            self.master_S[start : start + length].mul_(1.0 - learning_rate * self._config.weight_decay)
        scale = math.sqrt(1.0 - beta2**self.updates)
        rate = learning_rate / (1.0 - beta1**self.updates)
        for piece in chunks(gradient_S):
            gradient, first, second = gradient_S[piece], self.first_S[piece], self.second_S[piece]
            first.lerp_(gradient, 1.0 - beta1)
            second.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
            self.master_S[piece].addcdiv_(first, second.sqrt().div_(scale).add_(self._config.eps), value=-rate)

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
        for part, tensor in self._parts.items():
            source = torch.from_numpy(arrays[part][start - offset : stop - offset])
            tensor[start - self._offset : stop - self._offset].copy_(source)
        return stop - start

    def _overlap(self, offset: int, length: int) -> tuple[int, int]:
        """First element, and that after the last, of what the interval has in common with the own slice."""
        return max(offset, self._offset), min(offset + length, self._offset + len(self.master_S))


def _complement(undecayed: Sequence[Span], offset: int, length: int) -> list[Span]:
    """The parts of the slice outside the given intervals, counted from the slice's own start."""
    decayed, position = [], offset
    for start, size in [*sorted(undecayed), (offset + length, 0)]:
        stop = min(start, offset + length)
        if stop > position:
            decayed.append((position - offset, stop - position))
        position = max(position, start + size)
    return decayed

"""AdamW, its state cut over data-parallel ranks as the masters are.

Loshchilov & Hutter 2019. Shape legend: S elements of this rank's slice.
"""

import math
from collections.abc import Mapping

import torch

from hpcrl.config.model import OptimizerConfig
from hpcrl.engines.checksum import placed_chunks, runs
from hpcrl.engines.chunks import chunks_at
from hpcrl.engines.masters import ShardedMasters
from hpcrl.engines.slices import Slice
from hpcrl.parallel.replica import ReplicaGroups


class ShardedAdamW(ShardedMasters):
    """Owns both moments of its slice, too. Does not know how gradients come about."""

    def __init__(self, name: str, slice_: Slice, groups: ReplicaGroups, config: OptimizerConfig) -> None:
        super().__init__(name, slice_, groups)
        self._config = config
        pinned = self.master_S.is_pinned()
        self.first_S, self.second_S = (torch.zeros_like(self.master_S, pin_memory=pinned) for _ in range(2))

    @property
    def parts(self) -> Mapping[str, torch.Tensor]:
        return {"master": self.master_S, "first": self.first_S, "second": self.second_S}

    def settle(self, config: OptimizerConfig) -> None:
        """Make updates from now on with these hyper-parameters; what is remembered stays."""
        self._config = config

    def step(self, gradient: torch.Tensor, learning_rate: float) -> float:
        """One update with the sum of all ranks' gradients; their norm before clipping, the same on all ranks.

        `gradient` is what the model's memory has of it, and is overwritten. Nothing changes where it is not finite.
        """
        own = self._slice.reduced(gradient)
        norm = self._norm(own)
        if not math.isfinite(norm):
            return norm
        if 0 < self._config.grad_clip < norm:
            own.mul_(self._config.grad_clip / norm)
        self._update(own, learning_rate)
        self._slice.publish()
        return norm

    def _norm(self, own_S: torch.Tensor) -> float:
        """Every element of the model counts once: by its owner."""
        square = torch.zeros(1, dtype=torch.float64, device=own_S.device)
        for piece, of_others in placed_chunks(own_S, [span for span in self.spans if not span.owned]):
            squares = own_S[piece].double().square()
            for span in of_others:
                runs(squares, span).zero_()
            square += squares.sum()
        return math.sqrt(float(self._groups.total_of_shares(square)))

    def _update(self, gradient_S: torch.Tensor, learning_rate: float) -> None:
        beta1, beta2 = self._config.betas
        self.updates += 1
        self._decay(learning_rate)
        scale = math.sqrt(1.0 - beta2**self.updates)
        rate = learning_rate / (1.0 - beta1**self.updates)
        for piece, gradient in chunks_at(gradient_S, self.master_S.device):
            first, second = self.first_S[piece], self.second_S[piece]
            first.lerp_(gradient, 1.0 - beta1)
            second.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
            self.master_S[piece].addcdiv_(first, second.sqrt().div_(scale).add_(self._config.eps), value=-rate)

    def _decay(self, learning_rate: float) -> None:
        for start, length in self._slice.decayed:
            self.master_S[start : start + length].mul_(1.0 - learning_rate * self._config.weight_decay)

"""Moments of a stream of batches, to train a critic on targets of a steady scale. State of a role: checkpointed."""

import math
from collections.abc import Mapping

import torch

from hpcrl.algos.functional.totals import Total, alone

MINIMAL_VARIANCE = 1e-2
NORMAL_LIMIT = 5.0


class Normaliser:
    """Mean and variance of all numbers seen so far; those of a batch ago count `decay` times as much.

    Count and sums decay alike, so early means are not drawn to zero. `decay` 1 is the plain running mean.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.count, self.sum, self.square_sum = 0.0, 0.0, 0.0

    def update(self, values: torch.Tensor, total: Total = alone) -> None:
        """Take in the values of all ranks."""
        values = values.double()
        sums = torch.stack([values.new_tensor(len(values)), values.sum(), values.square().sum()])
        count, first, second = total(sums).tolist()
        self.count = self.decay * self.count + count
        self.sum = self.decay * self.sum + first
        self.square_sum = self.decay * self.square_sum + second

    @property
    def mean(self) -> float:
        return self.sum / self.count if self.count else 0.0

    @property
    def deviation(self) -> float:
        """At least 0.1; 1 before the first batch."""
        if not self.count:
            return 1.0
        return math.sqrt(max(self.square_sum / self.count - self.mean**2, MINIMAL_VARIANCE))

    def scale(self, values: torch.Tensor) -> torch.Tensor:
        return (values - self.mean) / self.deviation

    def normalise(self, values: torch.Tensor) -> torch.Tensor:
        """Scaled, and within ±5."""
        return self.scale(values).clamp(-NORMAL_LIMIT, NORMAL_LIMIT)

    def denormalise(self, values: torch.Tensor) -> torch.Tensor:
        return values * self.deviation + self.mean

    def state(self) -> dict[str, float]:
        return {"count": self.count, "sum": self.sum, "square_sum": self.square_sum}

    def load_state(self, state: Mapping[str, float]) -> None:
        self.count, self.sum, self.square_sum = state["count"], state["sum"], state["square_sum"]

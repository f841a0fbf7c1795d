"""Statistics over groups: the responses to one prompt in a step, of which each rank may hold any part.

Sums go through `Total` as a vector over the groups of all ranks. A sample that does not count is in no sum, and its
advantage is 0. Shape legend: B samples of this rank.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from hpcrl.algos.functional.totals import Total, alone

STD_EPSILON = 1e-6


@dataclass(frozen=True, eq=False)
class Groups:
    """Which samples are compared with each other."""

    numbers_B: torch.Tensor
    """int64: the number of each sample's group, the same on all ranks."""
    counted_B: torch.Tensor
    """bool: the samples that count."""
    count: int
    """Groups of all ranks."""
    total: Total = alone

    def sums(self, numbers_B: torch.Tensor) -> torch.Tensor:
        """Over each sample's group, of those that count, float64 [B]."""
        held = torch.where(self.counted_B, numbers_B.double(), 0.0)
        return self.total(held.new_zeros(self.count).index_add(0, self.numbers_B, held))[self.numbers_B]

    @property
    def sizes(self) -> torch.Tensor:
        """How many of each sample's group count, float64 [B]."""
        return self.sums(torch.ones(len(self.numbers_B)))

    def counting(self, numbers_B: torch.Tensor) -> torch.Tensor:
        """The numbers, and 0 for samples that do not count."""
        return torch.where(self.counted_B, numbers_B, 0.0)


def centred(scores_B: torch.Tensor, groups: Groups) -> torch.Tensor:
    """A_i = s_i - the mean of its group.

    0 of a response whose mates all do not count, or that a script has left without any, as in TRL: there is nothing to
    compare it with. (verl gives the only response to a prompt its score.)
    """
    return groups.counting(scores_B - groups.sums(scores_B) / groups.sizes.clamp(min=1.0))


def standardised(scores_B: torch.Tensor, groups: Groups, std: Literal["group", "batch", "none"]) -> torch.Tensor:
    """A_i = (s_i - mean of its group) / (σ + 1e-6) (Shao et al. 2024, arXiv:2402.03300).

    σ is the (Bessel) deviation of its group, of the scores of the whole batch, or 1 - 1e-6: none (Liu et al. 2025,
    arXiv:2503.20783).
    """
    above, sizes = centred(scores_B, groups), groups.sizes
    if std == "none":
        return above
    if std == "batch":
        return above / (_deviation(scores_B, groups) + STD_EPSILON)
    variances = groups.sums(above.square()) / (sizes - 1).clamp(min=1.0)
    return above / (variances.sqrt() + STD_EPSILON)


def _deviation(scores_B: torch.Tensor, groups: Groups) -> torch.Tensor:
    """Of all scores that count; 0 of fewer than two."""
    scores, ones = groups.counting(scores_B), groups.counted_B.double()
    count, first = groups.total(torch.stack([ones.sum(), scores.sum()]))
    squares = groups.total(((scores - first / count.clamp(min=1.0)) * ones).square().sum().reshape(1))[0]
    return (squares / (count - 1).clamp(min=1.0)).sqrt()

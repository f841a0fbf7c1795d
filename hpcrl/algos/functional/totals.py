"""Sums over all ranks that hold a part of a batch: functions that need one are given a `Total`."""

from collections.abc import Callable

import torch

Total = Callable[[torch.Tensor], torch.Tensor]
"""A float64 vector of sums over this rank's rows → the sums over all ranks' rows, added up in rank order."""


def alone(sums: torch.Tensor) -> torch.Tensor:
    """The total where one rank holds everything."""
    return sums

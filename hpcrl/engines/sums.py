"""What micro-batches add to a mini-batch's loss and statistics."""

from collections.abc import Callable, Mapping

import torch

from hpcrl.engines.engine import Statistic, Totals


class Sums:
    """Losses and statistics of micro-batches added up in float64."""

    def __init__(self, total: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._total = total
        self._names: list[str] = []
        self._sums: torch.Tensor | float = 0.0

    def __bool__(self) -> bool:
        return isinstance(self._sums, torch.Tensor)

    def add(self, loss: torch.Tensor, statistics: Mapping[str, Statistic]) -> None:
        self._names = sorted(statistics)
        numbers = [loss, *(number for name in self._names for number in statistics[name])]
        self._sums = self._sums + torch.stack([number.detach().double() for number in numbers])

    def totals(self) -> tuple[float, Totals]:
        """The loss, and every statistic, of all ranks."""
        assert isinstance(self._sums, torch.Tensor), "something was added"
        loss, *numbers = self._total(self._sums).tolist()
        return loss, dict(zip(self._names, zip(numbers[::2], numbers[1::2], strict=True), strict=True))

"""Where each parameter lies in a flat buffer: arithmetic only, no tensors."""

from collections.abc import Iterable
from dataclasses import dataclass

from hpcrl.families.family import Parameter

ALIGNMENT = 16
"""Parameters begin at multiples of so many elements: a cache line of fp32, and the 16 bytes that GPU kernels load."""


@dataclass(frozen=True)
class ParameterLayout:
    """Parameters in buffer order, the elements at which they begin, and the buffer's length, gaps of alignment too."""

    parameters: tuple[Parameter, ...]
    offsets: tuple[int, ...]
    numel: int

    def spans(self) -> Iterable[tuple[Parameter, int]]:
        """Each parameter and its first element."""
        return zip(self.parameters, self.offsets, strict=True)


def lay_out(parameters: Iterable[Parameter]) -> ParameterLayout:
    """One parameter after another."""
    placed = tuple(parameters)
    offsets, end = [], 0
    for parameter in placed:
        offsets.append(end)
        end += -(-parameter.numel // ALIGNMENT) * ALIGNMENT
    return ParameterLayout(placed, tuple(offsets), end)


def shard_bounds(total: int, ranks: int) -> list[tuple[int, int]]:
    """(offset, length) of each rank's contiguous slice of a flat buffer; the last ones may be shorter or empty."""
    length = -(-total // ranks)
    offsets = [min(i * length, total) for i in range(ranks)]
    return [(offset, min(length, total - offset)) for offset in offsets]

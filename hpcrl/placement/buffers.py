"""Where each parameter lies in a flat buffer: arithmetic only, no tensors."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from hpcrl.families.family import Parameter
from hpcrl.families.stacks import Stack

ALIGNMENT = 64
"""Parameters begin at multiples of so many elements: 128 bytes of half precision, which a GPU loads at once. It is
Megatron-core's, too."""
ROOM = 128
"""The length of a buffer is a multiple of so many elements: data-parallel ranks, if their number divides it, have equal
slices."""


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
    ends = [0, *accumulate(map(_aligned, (parameter.numel for parameter in placed)))]
    return ParameterLayout(placed, tuple(ends[:-1]), -(-ends[-1] // ROOM) * ROOM)


def length_of(sizes: Iterable[int]) -> int:
    """Of a buffer with parameters of so many elements."""
    return -(-sum(map(_aligned, sizes)) // ROOM) * ROOM


def _aligned(numel: int) -> int:
    return -(-numel // ALIGNMENT) * ALIGNMENT


def unaligned(stack: Stack) -> str:
    """Why the experts of a stack cannot lie side by side in a buffer; empty where they can, or there are none."""
    numel = stack.parameters[0].numel
    if not stack.holds_experts or numel % ALIGNMENT == 0:
        return ""
    return f"{stack.name}: an expert's matrix has {numel} numbers; a multiple of {ALIGNMENT} is needed"


def shard_bounds(total: int, ranks: int) -> list[tuple[int, int]]:
    """(offset, length) of each rank's contiguous slice of a flat buffer; the last ones may be shorter or empty."""
    length = -(-total // ranks)
    offsets = [min(i * length, total) for i in range(ranks)]
    return [(offset, min(length, total - offset)) for offset in offsets]

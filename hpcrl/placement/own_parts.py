"""What a data-parallel rank has of a model whose every parameter is cut over them: arithmetic only, no tensors."""

from collections.abc import Iterator
from dataclasses import dataclass

from hpcrl.backends.backend import CutBy
from hpcrl.families.config import DecoderConfig
from hpcrl.families.family import Parameter
from hpcrl.families.places import Span, whole
from hpcrl.families.stacks import Stack, stacks_of
from hpcrl.placement.buffers import ALIGNMENT, shard_bounds


@dataclass(frozen=True)
class OwnPart:
    """`numel` elements of one parameter from `begin` on, which lie from element `offset` of a rank's buffer on."""

    parameter: Parameter
    begin: int
    numel: int
    offset: int

    def spans(self) -> Iterator[Span]:
        """Where its elements are; none of a rank that has none."""
        yield from (
            span.moved(self.offset)
            for span in whole(self.parameter.name, self.parameter.numel).within(self.begin, self.begin + self.numel)
        )


@dataclass(frozen=True)
class OwnStack:
    """`numel` elements of what is cut as one tensor, from `begin` on; they lie from `offset` on.

    There is `room` for as many as the rank with most has: what is sent has one length.
    """

    stack: Stack
    begin: int
    numel: int
    offset: int
    room: int

    @property
    def rows(self) -> tuple[int, ...]:
        """The shape of one that is cut by rows."""
        shape = self.stack.shape
        return (self.numel * shape[0] // self.stack.numel, *shape[1:])

    def parts(self) -> Iterator[OwnPart]:
        """Those of its parameters, of some of which a rank may have nothing."""
        first = 0
        for parameter in self.stack.parameters:
            begin = min(max(self.begin - first, 0), parameter.numel)
            end = min(max(self.begin + self.numel - first, 0), parameter.numel)
            yield OwnPart(parameter, begin, end - begin, self.offset + max(first + begin - self.begin, 0))
            first += parameter.numel


@dataclass(frozen=True)
class OwnParts:
    """All that a rank has, layer by layer, and the length of its buffer."""

    stacks: tuple[OwnStack, ...]
    numel: int

    @property
    def parts(self) -> Iterator[OwnPart]:
        for stack in self.stacks:
            yield from stack.parts()

    def spans(self) -> tuple[Span, ...]:
        return tuple(span for part in self.parts for span in part.spans())


def own_parts(config: DecoderConfig, ranks: int, index: int, by: CutBy) -> OwnParts:
    """Those of rank `index` of so many: what each tensor is cut into goes to them in order, as equally as can be. Of
    stacked experts a row is one of them."""
    found, end = [], 0
    for stack in stacks_of(config):
        width = stack.numel // stack.shape[0] if by == "rows" else 1
        bounds = shard_bounds(stack.numel // width, ranks)
        first, count = bounds[index]
        room = bounds[0][1] * width
        found.append(OwnStack(stack, first * width, count * width, end, room))
        end += -(-room // ALIGNMENT) * ALIGNMENT if by == "rows" else room
    return OwnParts(tuple(found), end)

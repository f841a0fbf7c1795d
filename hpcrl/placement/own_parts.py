"""What a data-parallel rank has of a model whose every parameter is cut over them: arithmetic only, no tensors."""

from collections.abc import Iterator
from dataclasses import dataclass

from hpcrl.backends.backend import CutBy
from hpcrl.families.config import DecoderConfig
from hpcrl.families.family import Parameter
from hpcrl.families.places import Span, whole
from hpcrl.families.reader import parameters_of
from hpcrl.placement.buffers import ALIGNMENT, shard_bounds


@dataclass(frozen=True)
class OwnPart:
    """`numel` elements of one parameter from `begin` on, which lie from element `offset` of a rank's buffer on.

    There is `room` for as many as the rank with most has: what is sent has one length.
    """

    parameter: Parameter
    begin: int
    numel: int
    offset: int
    room: int

    @property
    def rows(self) -> tuple[int, ...]:
        """The shape of one that is cut by rows."""
        shape = self.parameter.shape
        return (self.numel * shape[0] // self.parameter.numel, *shape[1:])

    def spans(self) -> Iterator[Span]:
        """Where its elements are; none of a rank that has none."""
        yield from (
            span.moved(self.offset)
            for span in whole(self.parameter.name, self.parameter.numel).within(self.begin, self.begin + self.numel)
        )


@dataclass(frozen=True)
class OwnParts:
    """All that a rank has, layer by layer, and the length of its buffer."""

    parts: tuple[OwnPart, ...]
    numel: int

    def spans(self) -> tuple[Span, ...]:
        return tuple(span for part in self.parts for span in part.spans())


def own_parts(config: DecoderConfig, ranks: int, index: int, by: CutBy) -> OwnParts:
    """Those of rank `index` of so many: what each parameter is cut into goes to them in order, as equally as can be."""
    found, end = [], 0
    for parameter in parameters_of(config):
        width = parameter.numel // parameter.shape[0] if by == "rows" else 1
        bounds = shard_bounds(parameter.numel // width, ranks)
        first, count = bounds[index]
        room = bounds[0][1] * width
        found.append(OwnPart(parameter, first * width, count * width, end, room))
        end += -(-room // ALIGNMENT) * ALIGNMENT if by == "rows" else room
    return OwnParts(tuple(found), end)

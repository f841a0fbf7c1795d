"""What a data-parallel rank has of a model whose every parameter is cut by its rows: arithmetic only, no tensors."""

from collections.abc import Iterator
from dataclasses import dataclass

from hpcrl.families.config import DecoderConfig
from hpcrl.families.family import Parameter
from hpcrl.families.places import Span, whole
from hpcrl.families.reader import parameters_of
from hpcrl.placement.buffers import ALIGNMENT, shard_bounds


@dataclass(frozen=True)
class RowShard:
    """Rows (of a vector: elements) of one parameter, from element `offset` of a rank's buffer on. There is `room` for
    as many as the rank with most has: what is sent has one length."""

    parameter: Parameter
    first: int
    rows: int
    offset: int
    room: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self.parameter.shape[1:])

    @property
    def numel(self) -> int:
        return self.rows * self.width

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self.parameter.numel // self.parameter.shape[0]

    def spans(self) -> Iterator[Span]:
        """Where its elements are; none of a rank that has no row."""
        begin = self.first * self.width
        yield from (
            span.moved(self.offset)
            for span in whole(self.parameter.name, self.parameter.numel).within(begin, begin + self.numel)
        )


@dataclass(frozen=True)
class RowShards:
    """All that a rank has, layer by layer, and the length of its buffer."""

    shards: tuple[RowShard, ...]
    numel: int

    def spans(self) -> tuple[Span, ...]:
        return tuple(span for shard in self.shards for span in shard.spans())


def row_shards(config: DecoderConfig, ranks: int, index: int) -> RowShards:
    """Those of rank `index` of so many: the rows of each parameter go to them in order, as equally as can be."""
    found, end = [], 0
    for parameter in parameters_of(config):
        bounds = shard_bounds(parameter.shape[0], ranks)
        first, rows = bounds[index]
        room = bounds[0][1] * (parameter.numel // parameter.shape[0])
        found.append(RowShard(parameter, first, rows, end, room))
        end += -(-room // ALIGNMENT) * ALIGNMENT
    return RowShards(tuple(found), end)

"""One token more of each row that is being generated: a function of tensors that stay where they are, so that a GPU may
record it once for each number of rows and replay it, instead of being told every kernel anew.

Shapes: N rows, E hidden size.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

from torch import Tensor

from hpcrl.data.slots import rounded_rows
from hpcrl.models.decoder import Decoder
from hpcrl.models.draw import Draw
from hpcrl.models.layers import Block, ExpertMLP
from hpcrl.models.slot_table import SlotTable
from hpcrl.models.transformer import Transformer


class Made(NamedTuple):
    """Of a visit to rows: their next tokens, or of stages but the last the rows [N, E] that the next is given."""

    given: Tensor
    logprobs: Tensor | None
    """One a token."""


class Recorder(Protocol):
    """Records what a function has a device do."""

    def record(self, function: Callable[[], Made]) -> Callable[[], Made]:
        """What does the same again, in the same memory, and gives the same tensors each time. `function` has run
        before, with tensors of the same shapes."""


class _Shape(NamedTuple):
    rows: int
    length: int


class DecodeSteps:
    """Owns the recordings of one cohort of rows. Row i sits in slot i; slots behind the active ones, of which a step
    may have some, are nobody's.

    A step reads its tokens, positions, counts and seeds out of the slot table, keys and values out of the decoder's
    cache, and what a stage is given out of room of its own. A shape is run for the first time as it is, recorded at its
    second visit, and replayed from then on.
    """

    def __init__(
        self, model: Transformer, decoder: Decoder, table: SlotTable, draw: Draw | None, recorder: Recorder | None
    ) -> None:
        """`draw` is that of the last stage; without a `recorder` every step is run as it is, with no more rows than
        there are."""
        self._decoder = decoder
        self._table = table
        self._draw = draw
        self._recorder = recorder
        self._replays: dict[_Shape, Callable[[], Made] | None] = {}
        """None: has been run once."""
        enters = recorder is not None and not model.cut.is_first
        self._entrance_NE = model.entrance(decoder.slots) if enters else None

    def rows(self, count: int) -> int:
        """How many rows a step for so many has."""
        return self._decoder.decode_rows(count) if self._recorder is None else rounded_rows(count)

    def __call__(self, count: int, longest: int, given_NE: Tensor | None = None) -> Made:
        """A step for the first `count` slots, none of which has more tokens than `longest` then."""
        if self._recorder is None:
            return self._made(count, longest, given_NE)
        shape = _Shape(rounded_rows(count), self._decoder.rounded_length(longest))
        if self._entrance_NE is not None:
            assert given_NE is not None
            given_NE = self._entrance_NE[: shape.rows].copy_(given_NE)
        if shape not in self._replays:
            self._replays[shape] = None
            made = self._made(*shape, given_NE)
        else:
            replay = self._replays[shape]
            if replay is None:
                replay = self._replays[shape] = self._recorder.record(lambda: self._made(*shape, given_NE))
            made = replay()
        if made.logprobs is None:
            return made
        return Made(made.given[:count].clone(), made.logprobs[:count].clone())

    def begun(self, made: Tensor, span: slice) -> Made:
        """The first tokens of rows that have entered, from their logits; of stages but the last, rows as they are."""
        if self._draw is None:
            return Made(made, None)
        return Made(*self._draw(made, self._table.seeds(span), self._table.counts(span)))

    def _made(self, rows: int, longest: int, given_NE: Tensor | None) -> Made:
        span, table = slice(0, rows), self._table
        return self.begun(self._decoder.decode(table.tokens(span), table.positions(span), longest, given_NE), span)


def recordable(model: Transformer) -> bool:
    """Whether a step asks the host nothing and no other rank anything: then a device may be given it as a recording."""
    blocks = cast(list[Block], list(model.blocks))
    waits = any(isinstance(block.mlp, ExpertMLP) and block.mlp.experts.waits for block in blocks)
    return model.ranks.size == 1 and not waits

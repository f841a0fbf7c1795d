"""Rows that are generated side by side in the slots of a cache: they enter, get a token at each visit, and leave.

Shapes: T packed prompt tokens, N rows, E hidden size, V vocabulary.
"""

from collections import deque
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpcrl.data.slots import Admission, Move, Scheduler
from hpcrl.models.decode_steps import DecodeSteps, Made
from hpcrl.models.decoder import Decoder
from hpcrl.models.history import History
from hpcrl.models.slot_table import SlotTable
from hpcrl.models.transfers import Reading


@dataclass(frozen=True)
class Wanted:
    """The rows of a generation, waiting or not: prompts, numbers that are equal for equal prompts, seeds, limits of
    what is still to be drawn, and how many of a prompt's last tokens were drawn before."""

    prompts: Sequence[np.ndarray]
    numbers: Sequence[int]
    seeds: Sequence[int]
    limits: Sequence[int]
    counts: Sequence[int]

    @property
    def lengths(self) -> list[int]:
        return [len(prompt) for prompt in self.prompts]

    @property
    def begun(self) -> list[np.ndarray]:
        """The tokens of each that were drawn before."""
        return [text[len(text) - count :] for text, count in zip(self.prompts, self.counts, strict=True)]

    @property
    def longest(self) -> int:
        """Tokens of the longest row there can be."""
        return max(map(self.most, range(len(self.prompts))))

    def most(self, row: int) -> int:
        """Tokens that a row can have, its prompt included."""
        return len(self.prompts[row]) + self.limits[row]


class _Drawn(NamedTuple):
    """Tokens of a visit, on their way to the host."""

    rows: list[int]
    tokens: Reading
    logprobs: Tensor


class Cohort:
    """Owns slots of one stage. What it plans follows from the rows, their limits, and from which of them were ended by
    a token `late` visits before the last one or earlier: all stages plan alike, however fast each is.

    With `late` = 0 the host waits for the tokens of a visit before it plans the next one. With 1 it reads them while
    the next one is on its way: a row that has ended may get one token more, which the history throws away.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        decoder: Decoder,
        table: SlotTable,
        steps: DecodeSteps,
        wanted: Wanted,
        history: History,
        late: int,
    ) -> None:
        self.span = slice(0, 0)
        """The slots that get a token at the visit that was planned last."""
        self._scheduler = scheduler
        self._decoder = decoder
        self._table = table
        self._steps = steps
        self._wanted = wanted
        self._history = history
        self._late = late
        self._unread: deque[_Drawn] = deque()
        self._begin = _Begin(decoder, wanted)
        self._admission = Admission([], [], [])

    def plan(self) -> bool:
        """Plan the next visit: rows leave, rows enter, or those that are there go on. Whether there is any."""
        self._retire(self._read(self._late))
        first, wanted = self._scheduler.active, self._wanted
        self._admission = self._scheduler.admit()
        if rows := self._admission.rows:
            columns = wanted.seeds, wanted.lengths, wanted.counts
            self._table.begin(first, *([column[row] for row in rows] for column in columns))
            self._decoder.seat(first, [wanted.most(row) for row in rows])
        self.span = slice(first if rows else 0, self._scheduler.active)
        return self.count > 0

    @property
    def begins(self) -> bool:
        """Whether the planned visit is to rows that enter."""
        return bool(self._admission.rows)

    @property
    def count(self) -> int:
        """How many rows the planned visit is to."""
        return self.span.stop - self.span.start

    def given_rows(self) -> int:
        """How many rows the planned visit needs of the stage before."""
        if self._admission.rows:
            return self._decoder.prefill_rows([self._wanted.prompts[row] for row in self._admission.prefilled])
        return self._steps.rows(self.count) if self.count else 0

    def visit(self, given: Tensor | None = None) -> Made | None:
        """The span's next tokens; of stages but the last, rows for the next one, if it needs any."""
        if not self._admission.rows:
            return self._steps(self.count, self._scheduler.longest(), given)
        made = self._begin.made(self._admission, self.span.start, self._scheduler.awaited(), given)
        return None if made is None else self._steps.begun(made, self.span)

    def take(self, tokens_N: Tensor, logprobs_N: Tensor) -> None:
        """What was drawn at the visit that was planned last."""
        rows = self._scheduler.rows(self.span)
        self._table.advance(self.span, tokens_N)
        self._scheduler.drew(rows)
        self._unread.append(_Drawn(rows, Reading(tokens_N), logprobs_N))

    def finish(self) -> None:
        """Write down what is still on its way."""
        self._read(0)

    def _read(self, late: int) -> list[int]:
        """Write down the tokens of all visits but the last `late`. The rows that were ended by them."""
        ended: list[int] = []
        while len(self._unread) > late:
            drawn = self._unread.popleft()
            ended += self._history.add(drawn.rows, drawn.tokens.numbers(), drawn.logprobs)
        return ended

    def _retire(self, ended: Sequence[int]) -> None:
        before = self._scheduler.active
        moves = self._scheduler.leave(ended)
        if self._scheduler.active < before:
            self._decoder.leave(moves, self._scheduler.active)
            self._table.move(moves)


class _Begin:
    """Begins rows: by a prefill, or with a copy of what a row of the same prompt has in its slot."""

    def __init__(self, decoder: Decoder, wanted: Wanted) -> None:
        self._decoder = decoder
        self._prompts = wanted.prompts
        self._numbers = wanted.numbers
        self._kept: dict[int, Tensor] = {}
        """By prompt: the logits after it, while rows wait for them."""

    def made(
        self, admission: Admission, first_slot: int, awaited: AbstractSet[int], given: Tensor | None
    ) -> Tensor | None:
        """Logits [N, V] of the next tokens of the rows, which sit in the slots from `first_slot` on; or rows [T, E]."""
        made, first_copy = None, first_slot + len(admission.prefilled)
        if admission.prefilled:
            made = self._decoder.prefill([self._prompts[row] for row in admission.prefilled], first_slot, given)
        self._decoder.copy([Move(source, first_copy + i) for i, source in enumerate(admission.sources)])
        if not self._decoder.gives_logits:
            return made
        parts = [] if made is None else [made]
        if admission.copied:
            parts.append(torch.stack([self._kept[self._numbers[row]] for row in admission.copied]))
        logits = torch.cat(parts) if len(parts) > 1 else parts[0]
        last = {self._numbers[row]: place for place, row in enumerate(admission.rows)}
        self._kept |= {number: logits[place].clone() for number, place in last.items() if number in awaited}
        self._kept = {number: kept for number, kept in self._kept.items() if number in awaited}
        return logits

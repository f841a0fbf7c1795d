"""Rows that are generated side by side in the slots of a cache: they enter, get a token at each visit, and leave.

Shapes: T packed prompt tokens, N rows, E hidden size, V vocabulary.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcrl.data.slots import Admission, Move, Scheduler
from hpcrl.models.decoder import Decoder
from hpcrl.models.slot_table import SlotTable


@dataclass(frozen=True)
class Wanted:
    """The rows of a generation, waiting or not: prompts, numbers that are equal for equal prompts, seeds and limits."""

    prompts: Sequence[np.ndarray]
    numbers: Sequence[int]
    seeds: Sequence[int]
    limits: Sequence[int]

    @property
    def lengths(self) -> list[int]:
        return [len(prompt) for prompt in self.prompts]

    @property
    def longest(self) -> int:
        """Tokens of the longest row there can be."""
        return max(length + limit for length, limit in zip(self.lengths, self.limits, strict=True))


class Cohort:
    """Owns slots of one stage. What it plans follows from the rows, and from which of them have ended: all stages plan
    alike."""

    def __init__(self, scheduler: Scheduler, decoder: Decoder, table: SlotTable, wanted: Wanted) -> None:
        self.table = table
        self.span = slice(0, 0)
        """The slots that get a token at the visit that was planned last."""
        self._scheduler = scheduler
        self._decoder = decoder
        self._wanted = wanted
        self._begin = _Begin(decoder, wanted)
        self._admission = Admission([], [], [])

    def plan(self) -> bool:
        """Plan the next visit: rows enter, or those that are there go on. Whether there is any."""
        first, wanted = self._scheduler.active, self._wanted
        self._admission = self._scheduler.admit()
        rows = self._admission.rows
        if rows:
            columns = (wanted.seeds, wanted.limits, wanted.lengths)
            self.table.begin(first, rows, *([column[row] for row in rows] for column in columns))
        self.span = slice(first if rows else 0, self._scheduler.active)
        return self.count > 0

    @property
    def count(self) -> int:
        """How many rows the planned visit is to."""
        return self.span.stop - self.span.start

    def given_rows(self) -> int:
        """How many rows the planned visit needs of the stage before."""
        if self._admission.rows:
            return self._decoder.prefill_rows([self._wanted.prompts[row] for row in self._admission.prefilled])
        return self._decoder.decode_rows(self.count) if self.count else 0

    def visit(self, given: Tensor | None = None) -> Tensor | None:
        """Logits [N, V] of the span's next tokens; of stages but the last, rows for the next one, if it needs any."""
        if self._admission.rows:
            return self._begin.made(self._admission, self.span.start, self._scheduler.awaited(), given)
        return self._decoder.decode(self.table.tokens(self.span), self.table.positions(self.span), given)

    def retire(self, ended: Sequence[int]) -> None:
        """Free these slots (ascending)."""
        moves = self._scheduler.retire(ended) if ended else []
        self._decoder.move(moves)
        self.table.move(moves)


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
        self._decoder.move([Move(source, first_copy + i) for i, source in enumerate(admission.sources)])
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

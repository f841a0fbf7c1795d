"""Which row of a generation batch sits in which slot of the cache. Knows lengths and slots: no tensors, no time."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

FEWEST_ROWS = 4
"""That a recorded step has."""
LEAST_ROWS = 4
"""Fewer rows than this are padded: on a CPU the bits of a row then do not depend on how many others there are."""


@dataclass(frozen=True)
class Move:
    """The row in slot `source` goes on in slot `target`."""

    source: int
    target: int


class Admission(NamedTuple):
    """Rows that enter, for the slots from the first free one on: those to prefill, then those that copy a slot."""

    prefilled: list[int]
    copied: list[int]
    sources: list[int]
    """The slot of a row with the same prompt, of each row that is copied."""

    @property
    def rows(self) -> list[int]:
        return self.prefilled + self.copied


class Scheduler:
    """Active rows fill the slots 0 … active - 1 without holes; waiting rows enter in order as slots become free.

    What it decides is a function of prompts, limits, slots and of which rows ended at which step, so equal batches are
    scheduled alike on any machine. Rows of one number in `prompts` have the same prompt, which is read once for those
    that enter together and for those that enter while one of them is active and has at most `spare` tokens more (None:
    however many it has). Rows that wait may be `waiting` for several schedulers, each with slots of its own.
    """

    def __init__(
        self,
        prompt_lengths: Sequence[int],
        slots: int,
        prefill_tokens: int,
        prompts: Sequence[int] | None = None,
        waiting: deque[int] | None = None,
        *,
        limits: Sequence[int] | None = None,
        spare: int | None = None,
    ) -> None:
        self._lengths = prompt_lengths
        self._prompts = range(len(prompt_lengths)) if prompts is None else prompts
        self._waiting = deque(range(len(prompt_lengths))) if waiting is None else waiting
        self.slots = slots
        self._prefill_tokens = prefill_tokens
        self._limits = limits
        self._spare = spare
        self._drawn = [0] * len(prompt_lengths)
        self._seats: list[int] = []
        self._full: list[int] = []

    @property
    def active(self) -> int:
        return len(self._seats)

    @property
    def done(self) -> bool:
        return not self._waiting and not self.active

    @property
    def admits(self) -> bool:
        """Whether a row waits, and a slot is free."""
        return bool(self._waiting) and len(self._seats) < self.slots

    def admit(self) -> Admission:
        """Rows to begin now: as many as fit into free slots and one prefill."""
        admission = Admission([], [], [])
        if not self.admits:
            return admission
        slot_of = {self._prompts[row]: slot for slot, row in enumerate(self._seats) if self._is_whole(row)}
        read: set[int] = set()
        tokens = 0
        free = self.slots - self.active
        while self._waiting and len(admission.prefilled) + len(admission.copied) < free:
            row = self._waiting[0]
            prompt = self._prompts[row]
            if prompt in slot_of:
                admission.copied.append(row)
                admission.sources.append(slot_of[prompt])
            else:
                tokens += 0 if prompt in read else self._lengths[row]
                if read and tokens > self._prefill_tokens:
                    break
                read.add(prompt)
                admission.prefilled.append(row)
            self._waiting.popleft()
        self._seats += admission.rows
        return admission

    def rows(self, span: slice) -> list[int]:
        """Those that sit in these slots."""
        return self._seats[span]

    def drew(self, rows: Sequence[int]) -> None:
        """Each of these has one token more."""
        drawn, limits = self._drawn, self._limits
        for row in rows:
            drawn[row] += 1
        if limits is not None:
            self._full.extend(row for row in rows if drawn[row] >= limits[row])

    def longest(self) -> int:
        """Tokens of the longest active row, its prompt included."""
        return max([self._lengths[row] + self._drawn[row] for row in self._seats])

    def leave(self, ended: Iterable[int]) -> list[Move]:
        """Free the slots of the rows at their limits, and of these as far as they have one; the moves as `retire`."""
        gone = {*ended, *self._full}
        self._full.clear()
        return self.retire([slot for slot, row in enumerate(self._seats) if row in gone]) if gone else []

    def awaited(self) -> set[int]:
        """The prompts of rows that wait."""
        return {self._prompts[row] for row in self._waiting}

    def retire(self, ended: Sequence[int]) -> list[Move]:
        """Free these slots (ascending). The moves bring rows from the end into the holes; targets and sources are
        disjoint."""
        left = self.active - len(ended)
        holes = [slot for slot in ended if slot < left]
        gone = set(ended)
        tail = [slot for slot in range(left, self.active) if slot not in gone]
        moves = [Move(source, target) for source, target in zip(tail, holes, strict=True)]
        for move in moves:
            self._seats[move.target] = self._seats[move.source]
        del self._seats[left:]
        return moves

    def _is_whole(self, row: int) -> bool:
        """Whether its slot still has all of its prompt that the next token sees."""
        return self._spare is None or self._drawn[row] <= self._spare


def rounded_rows(count: int) -> int:
    """How many rows a step that is recorded for `count` of them has: few different numbers, and never twice as many."""
    if count <= FEWEST_ROWS:
        return FEWEST_ROWS
    step = 8 if count <= 128 else 32
    return -(-count // step) * step

"""What a generation does, visit by visit, if responses have given lengths: by the scheduler that workers have.

Where nothing changes, rounds are told together, so that a plan costs no more for long responses. Shapes: V visits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hpcrl.data.pipeline_order import cohorts
from hpcrl.data.slots import Scheduler

FOREVER = 2**62
"""Rounds."""


class Prompts(NamedTuple):
    """Rows that wait: tokens of each, and numbers that are equal where prompts are."""

    lengths: Sequence[int]
    numbers: Sequence[int]
    responses: Sequence[int]
    """Tokens that each will get."""


_Visit = tuple[int, int, int, float, int]
"""Rows, tokens, pairs, context and times, as `Visits` has them."""


@dataclass(frozen=True, eq=False)
class Visits:
    """In the order in which they are made, to cohorts in turn."""

    rows_V: np.ndarray
    """That get a token."""
    tokens_V: np.ndarray
    """Of prompts that are read; 0 where rows go on."""
    pairs_V: np.ndarray
    """Of tokens in these prompts."""
    context_V: np.ndarray
    """Tokens that rows which go on see, all together; a mean of those that are told together."""
    times_V: np.ndarray
    """How often a visit is made like this; with several cohorts, that and the others of its turn."""
    cohorts: int

    @property
    def rounds(self) -> int:
        """How often some rows got a token, in one of the cohorts."""
        return int((self.times_V * (self.rows_V > 0)).sum())

    @cached_property
    def order_V(self) -> np.ndarray:
        """One visit after another, as they are numbered here."""
        turns = self.times_V.reshape(-1, self.cohorts)[:, 0]
        of_turn = np.repeat(np.arange(len(turns)), turns)
        return (of_turn[:, None] * self.cohorts + np.arange(self.cohorts)).ravel()


def visits_of(prompts: Prompts, slots: int, prefill_tokens: int, stages: int = 1) -> Visits:
    """Of one part of a call. A row that has ended leaves before the next visit to its cohort."""
    if not prompts.lengths:
        return _told([], stages)
    schedulers = cohorts(stages, prompts.lengths, min(slots, len(prompts.lengths)), prefill_tokens, prompts.numbers)
    seated = [_Seated(scheduler, prompts) for scheduler in schedulers]
    made: list[_Visit] = []
    while True:
        turn = [cohort.visit() for cohort in seated]
        if not any(visit[0] for visit in turn):
            break
        made += turn
        if (more := _unchanged(seated)) and any(cohort.rows for cohort in seated):
            made += [cohort.repeat(more) for cohort in seated]
    return _told(made, stages)


def _unchanged(seated: "Sequence[_Seated]") -> int:
    """How many visits from now on are only to the rows that there are, in all cohorts."""
    found = FOREVER
    for cohort in seated:
        found = min(found, cohort.unchanged())
        if not found:
            break
    return found


def _told(made: Sequence[_Visit], stages: int) -> Visits:
    table = np.array(made, np.float64).reshape(-1, 5).T
    rows, tokens, pairs, times = table[[0, 1, 2, 4]].astype(np.int64)
    return Visits(rows, tokens, pairs, table[3], times, stages)


class _Seated:
    """A cohort of rows, and how many tokens each has still to get."""

    def __init__(self, scheduler: Scheduler, prompts: Prompts) -> None:
        self._scheduler = scheduler
        self._prompts = prompts
        self._round = 0
        self._ends: dict[int, int] = {}
        """Row that is seated → the round after which it has all of its tokens."""
        self._next_end = 0
        self._context = 0
        """Tokens that seated rows have."""
        self.rows = 0
        """That are seated."""

    def visit(self) -> _Visit:
        """Rows leave, rows enter; those that entered get a token each, or else all do."""
        if self.rows and self._next_end <= self._round:
            self._leave()
        if not self._scheduler.admits:
            return self.repeat(1)
        admission = self._scheduler.admit()
        self._enter(admission.rows)
        read = {self._prompts.numbers[row]: self._prompts.lengths[row] for row in admission.prefilled}
        pairs = sum(length * (length + 1) // 2 for length in read.values())
        return len(admission.rows), sum(read.values()), pairs, 0, 1

    def unchanged(self) -> int:
        """How many visits from now on are only to the rows that there are."""
        if not self.rows:
            return FOREVER if self._scheduler.done else 0
        return 0 if self._scheduler.admits else max(0, self._next_end - self._round)

    def repeat(self, times: int) -> _Visit:
        """So many visits at which all rows get a token."""
        rows, before = self.rows, self._context
        if rows:
            self._round += times
            self._context += rows * times
        return rows, 0, 0, before + rows * (times - 1) / 2, times

    def _enter(self, rows: Sequence[int]) -> None:
        """Each of them gets its first token in this visit; the others none."""
        for row in rows:
            self._ends[row] = self._round + self._prompts.responses[row] - 1
            self._context += self._prompts.lengths[row] + 1
        self._next_end = min(self._ends.values())
        self.rows = len(self._ends)

    def _leave(self) -> None:
        seats = self._scheduler.rows(slice(0, self.rows))
        gone = [slot for slot, row in enumerate(seats) if self._ends[row] <= self._round]
        for slot in gone:
            row = seats[slot]
            del self._ends[row]
            self._context -= self._prompts.lengths[row] + self._prompts.responses[row]
        self._next_end = min(self._ends.values(), default=0)
        self.rows = len(self._ends)
        self._scheduler.retire(gone)

"""Which row of a generation batch sits in which slot of the cache. Knows lengths and slots: no tensors, no time."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Move:
    """The row in slot `source` goes on in slot `target`."""

    source: int
    target: int


class Scheduler:
    """Active rows fill the slots 0 … active - 1 without holes; waiting rows enter in order as slots become free.

    What it decides is a function of prompt lengths, slots and of which rows ended at which step, so equal batches are
    scheduled alike on any machine.
    """

    def __init__(self, prompt_lengths: Sequence[int], slots: int, prefill_tokens: int) -> None:
        self._lengths = prompt_lengths
        self._waiting = deque(range(len(prompt_lengths)))
        self._slots = slots
        self._prefill_tokens = prefill_tokens
        self.active = 0

    @property
    def done(self) -> bool:
        return not self._waiting and not self.active

    def admit(self) -> list[int]:
        """Rows to prefill now, for the slots from `active` on: as many as fit into free slots and one prefill."""
        rows: list[int] = []
        tokens = 0
        while self._waiting and self.active + len(rows) < self._slots:
            tokens += self._lengths[self._waiting[0]]
            if rows and tokens > self._prefill_tokens:
                break
            rows.append(self._waiting.popleft())
        self.active += len(rows)
        return rows

    def retire(self, ended: Sequence[int]) -> list[Move]:
        """Free these slots (ascending). The moves bring rows from the end into the holes; targets and sources are
        disjoint."""
        left = self.active - len(ended)
        holes = [slot for slot in ended if slot < left]
        gone = set(ended)
        tail = [slot for slot in range(left, self.active) if slot not in gone]
        self.active = left
        return [Move(source, target) for source, target in zip(tail, holes, strict=True)]

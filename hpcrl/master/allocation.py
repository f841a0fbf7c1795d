"""What the master knows of its allocation: when nodes are taken away, and what becomes of those that are missing.

Whoever started the jobs answers through `Allocation`, and may be slow: it is asked on threads that hold up neither the
beats nor the exit. Knows nothing of Slurm.
"""

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from hpcrl.events import AllocationEnds, AllocationSilent, Event, NodesMissing

EVERYTHING = -1
"""In the place of a node's number: the master, and with it the whole run."""
LOOK_EVERY_S = 15.0
"""How often it is asked about nodes that are missing."""
CONFIRM_S = 5.0
"""When it is asked again, if it has said that one of them never comes."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Absence:
    """What is known of a node that is missing, and in words.

    `queued`: it comes by itself; `silent`: its job runs, or nobody knows of one, and nothing was heard of it; `held`:
    somebody has to release it; `ended`: only another submission starts it again; `gone`: it never comes.
    """

    standing: Literal["queued", "silent", "held", "ended", "gone"]
    what: str


class Allocation(Protocol):
    """What started the nodes and can start others."""

    def ends(self) -> Mapping[int, float]:
        """Node (or EVERYTHING) → seconds since 1970 at which it is taken away."""
        ...

    def replace_missing(self, missing: Mapping[int, tuple[int, int] | None]) -> Mapping[int, Absence]:
        """Replace missing nodes (→ the incarnations of their last agents, if any); what is known of each."""
        ...

    def release(self, nodes: Collection[int]) -> None:
        """The run needs no more of these: what of them waits in a queue is not to start."""
        ...


class Ask(Protocol):
    """Has a question answered that may take long."""

    def __call__(self, question: Callable[[], Answer], /) -> Future[Answer]: ...


def ask_beside(question: Callable[[], Answer]) -> Future[Answer]:
    """On a thread of its own, which ends with the process."""
    answer: Future[Answer] = Future()

    def ask() -> None:
        try:
            answer.set_result(question())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="allocation", daemon=True).start()
    return answer


class AllocationWatch:
    """Asks an allocation, one question of a kind at a time, and remembers what it said. Never blocks.

    `now` is in seconds since 1970, as the ends of an allocation are; `clock` only measures pauses.
    """

    def __init__(
        self,
        allocation: Allocation | None,
        note: Callable[[Event], None],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        ask: Ask = ask_beside,
    ) -> None:
        self._allocation = allocation
        self._ask = ask
        self._note = note
        self._clock = clock
        self._now = now
        self._asking_ends: Future[Mapping[int, float]] | None = None
        self._looking: Future[Mapping[int, Absence]] | None = None
        self._next_look = self._looked_at = -math.inf
        self._before: Mapping[int, Absence] = {}
        self.ends: Mapping[int, float] = {}
        self.absences: Mapping[int, Absence] = {}

    def ask_ends(self) -> None:
        """Ask anew, at the beginning of an attempt: its nodes may be others."""
        self.ends = {}
        self._asking_ends = None if self._allocation is None else self._ask(self._allocation.ends)

    def time_left_s(self) -> float:
        """Until the first node is taken away; infinite while that is not known."""
        if self._asking_ends is not None and self._asking_ends.done():
            self.ends = self._said(self._asking_ends, "ends") or {}
            self._asking_ends = None
            if self.ends:
                self._note(AllocationEnds(dict(self.ends)))
        return min(self.ends.values(), default=math.inf) - self._now()

    def release(self, nodes: Collection[int]) -> Future[None]:
        """Have nodes that never came not start any more."""
        allocation, unneeded = self._allocation, tuple(nodes)
        return self._ask(lambda: None if allocation is None or not unneeded else allocation.release(unneeded))

    def first_to_go(self, within_s: float) -> list[int]:
        """The node that is taken away first, and those that go less than so much later."""
        first = min(self.ends.values(), default=math.inf)
        return [node for node, end in self.ends.items() if end <= first + within_s]

    def poll(
        self,
        missing: Mapping[int, tuple[int, int] | None],
        every_s: float = LOOK_EVERY_S,
        waits_s: float | None = None,
    ) -> None:
        """Every while, have the missing nodes seen to, however rarely that was wanted before. A node that came while it
        was asked about is not missing. `waits_s`: for how long they are still waited for, if they are."""
        if self._looking is not None and self._looking.done():
            said = self._said(self._looking, "absences")
            self._learn(said and {node: absence for node, absence in said.items() if node in missing}, waits_s)
            self._looking = None
        now, due = self._clock(), min(self._next_look, self._looked_at + every_s)
        if self._allocation is None or self._looking is not None or now < due:
            return
        self._looked_at, self._next_look = now, now + every_s
        allocation, asked = self._allocation, dict(missing)
        self._looking = self._ask(lambda: allocation.replace_missing(asked))

    def _learn(self, found: Mapping[int, Absence] | None, waits_s: float | None = None) -> None:
        if found is None:
            return
        if found != self.absences:
            until = None if waits_s is None else round(self._now() + waits_s, 3)
            self._note(NodesMissing({node: absence.what for node, absence in found.items()}, until))
        self._before, self.absences = self.absences, found
        if any(absence.standing in ("ended", "gone") for absence in found.values()):
            self._next_look = self._clock() + CONFIRM_S

    def found_all(self) -> None:
        """Nobody is missing any more."""
        self._before, self.absences = {}, {}

    @property
    def gone(self) -> dict[int, str]:
        """Missing nodes that never come."""
        return self._by_two_looks("gone")

    @property
    def ended(self) -> dict[int, str]:
        """Missing nodes that nobody starts again before the next submission."""
        return self._by_two_looks("ended")

    def _by_two_looks(self, standing: str) -> dict[int, str]:
        """In a row: between two states of a job Slurm may say anything, and an agent that is leaving may tell why."""
        found = {node: absence.what for node, absence in self.absences.items() if absence.standing == standing}
        return {node: what for node, what in found.items() if self._before.get(node) == self.absences[node]}

    def only_queue(self, missing: Iterable[int]) -> bool:
        """Whether all of these nodes are known to wait for nothing but their turn."""
        known = [self.absences.get(node) for node in missing]
        return all(absence is not None and absence.standing == "queued" for absence in known)

    def _said(self, asked: Future[Answer], what: str) -> Answer | None:
        """The answer; None, with a note, where there is none: a run needs no answer to go on."""
        try:
            return asked.result()
        except Exception as error:
            self._note(AllocationSilent(what, f"{type(error).__name__}: {error}"))
            return None

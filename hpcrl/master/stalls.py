"""Calls and moves that take far longer than those before them, by the events of an attempt and a clock. No I/O."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hpcrl.events import CallStalled, Event, PartSent, ended_unit

KEPT = 20
"""How many durations of a call are remembered."""
SLOWER = 3
"""A call stalls once it takes so many times as long as the longest of those."""
FIRST = 10
"""The first of its kind may take so many times as long as the least."""
LOOK_S = 1.0


@dataclass(frozen=True)
class Watched:
    """A part of a call that is under way."""

    sent: PartSent
    since: float
    due: float
    """When it is told of, for the first time or again."""


class Stalls:
    """Of one attempt. A call stalls no sooner than after `least_s`."""

    def __init__(self, least_s: float, clock: Callable[[], float]) -> None:
        self._least_s = least_s
        self._clock = clock
        self._watched: dict[tuple[int, str, int] | None, Watched] = {}
        self._took: dict[str, deque[float]] = {}
        self._next_look = 0.0

    def feed(self, event: Event) -> None:
        if isinstance(event, PartSent):
            now = self._clock()
            self._watched[event.step, event.call, event.part] = Watched(event, now, now + self._limit_s(event.call))
        elif (it := self._watched.pop(ended_unit(event), None)) is not None:
            self._took.setdefault(it.sent.call, deque(maxlen=KEPT)).append(self._clock() - it.since)

    def found(self) -> Iterator[CallStalled]:
        """Those that have stalled, without what their workers do: each once, then again whenever it has taken twice as
        long."""
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S
        for unit, it in self._watched.items():
            if now >= it.due:
                self._watched[unit] = replace(it, due=now + (now - it.since))
                longest_s = max(self._took.get(it.sent.call, ()), default=0.0)
                at = it.sent.step, it.sent.call, it.sent.part, it.sent.ranks
                yield CallStalled(*at, round(now - it.since, 1), round(longest_s, 3))

    def _limit_s(self, call: str) -> float:
        took = self._took.get(call)
        return max(self._least_s, SLOWER * max(took)) if took else FIRST * self._least_s

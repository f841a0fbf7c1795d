"""Calls and moves that take far longer than those before them, by the progress of an attempt and a clock. No I/O."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from hpcrl.events import CallStalled, CallWentOn
from hpcrl.progress import PartExecuted, PartSent, Progress

KEPT = 20
"""How many durations of a call are remembered."""
SLOWER = 3
"""A call stalls once it takes so many times as long as the longest of those."""
FIRST = 10
"""The first of its kind may take so many times as long as the least."""
LOOK_S = 1.0


class Watched(NamedTuple):
    """A part of a call that is under way."""

    sent: PartSent
    since: float
    due: float
    """When it is told of, for the first time or again."""
    told: bool = False


class Stalls:
    """Of one attempt. A call stalls no sooner than after `least_s`."""

    def __init__(self, least_s: float, clock: Callable[[], float]) -> None:
        self._least_s = least_s
        self._clock = clock
        self._watched: dict[tuple[int, str, int], Watched] = {}
        self._took: dict[str, deque[float]] = {}
        self._next_look = 0.0

    def follow(self, progress: Progress) -> CallWentOn | None:
        """What is to be told, where something that had stalled has come to its end."""
        if isinstance(progress, PartSent):
            now, key = self._clock(), (progress.step, progress.call, progress.part)
            self._watched[key] = Watched(progress, now, now + self._limit_s(progress.call))
        elif isinstance(progress, PartExecuted):
            unit = progress.step, progress.call, progress.part
            if (it := self._watched.pop(unit, None)) is not None:
                took_s = self._clock() - it.since
                self._took.setdefault(unit[1], deque(maxlen=KEPT)).append(took_s)
                return CallWentOn(*unit, round(took_s, 1)) if it.told else None
        return None

    def found(self) -> Iterator[CallStalled]:
        """Those that have stalled, without what their workers do: each once, then again whenever it has taken twice as
        long."""
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S
        for unit, it in self._watched.items():
            if now >= it.due:
                self._watched[unit] = it._replace(due=now + (now - it.since), told=True)
                longest_s = max(self._took.get(it.sent.call, ()), default=0.0)
                at = it.sent.step, it.sent.call, it.sent.part, it.sent.ranks
                yield CallStalled(*at, round(now - it.since, 1), round(longest_s, 3))

    def _limit_s(self, call: str) -> float:
        took = self._took.get(call)
        return max(self._least_s, SLOWER * max(took)) if took else FIRST * self._least_s

"""A clock that stands still while something is reckoned, and goes on to whatever happens next. Integer nanoseconds."""

import heapq
from collections.abc import Callable, Sequence

SECOND_NS = 1_000_000_000

Action = Callable[[], None]


class VirtualClock:
    """What is due at one moment happens in the order in which it was planned."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._moments: list[int] = []
        self._due: dict[int, list[Action]] = {}

    def seconds(self) -> float:
        return self.now_ns / SECOND_NS

    @property
    def next_ns(self) -> int | None:
        """When something happens next; None where nothing is planned."""
        return self._moments[0] if self._moments else None

    def at(self, moment_ns: int, action: Action) -> Sequence[Action]:
        """Plan something; what is past happens next. Returns all that is planned for that moment, in its order."""
        if moment_ns < self.now_ns:
            moment_ns = self.now_ns
        due = self._due.get(moment_ns)
        if due is None:
            due = self._due[moment_ns] = []
            heapq.heappush(self._moments, moment_ns)
        due.append(action)
        return due

    def after(self, delay_ns: int, action: Action) -> None:
        self.at(self.now_ns + delay_ns, action)

    def go_to(self, moment_ns: int) -> None:
        """Let all happen until then."""
        while self._moments and self._moments[0] <= moment_ns:
            self._next()
        self.now_ns = max(self.now_ns, moment_ns)

    def _next(self) -> None:
        self.now_ns = self._moments[0]
        actions = self._due[self.now_ns]
        for action in actions:  # it may grow
            action()
        del self._due[heapq.heappop(self._moments)]


class Lane:
    """What is done one after another, beside everything else: a thread that writes, the bytes of a disk."""

    def __init__(self) -> None:
        self.free_ns = 0

    def take(self, now_ns: int, duration_ns: int) -> int:
        """When something ends that may begin now, once all before it is done."""
        self.free_ns = max(self.free_ns, now_ns) + duration_ns
        return self.free_ns

"""How long calls and steps take, and what of it fits into the time that an allocation has left. No I/O."""

import math
from collections.abc import Callable, Iterable

DURATION_MEMORY = 0.9
"""How much of the longest duration of a call is remembered from one to the next."""

STEPS_MEASURED = 8
"""By how many of the newest steps it is told what one takes."""


class Pace:
    """Of one attempt. `time_left_s` is how long calls may still take before the allocation ends."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.time_left_s = math.inf
        self.newest = 0
        """The newest step that has closed in this attempt."""
        self._clock = clock
        self._durations: dict[str, float] = {}
        self._held_back: set[str] = set()
        self._began: dict[int, float] = {}
        self._step_s: float | None = None
        self._closings: list[float] = []
        self._last_kept = False

    def took(self, call: str, seconds: float) -> None:
        """A unit of the call was under way for so long."""
        self._durations[call] = max(seconds, DURATION_MEMORY * self._durations.get(call, 0.0))

    def consider_all(self) -> None:
        """Calls are about to be asked about anew."""
        self._held_back.clear()

    def fits(self, call: str) -> bool:
        """Whether a call will be over in time, by what it took in this attempt. The first of each is always tried."""
        if call not in self._durations or self._durations[call] <= self.time_left_s:
            return True
        self._held_back.add(call)
        return False

    @property
    def held_back(self) -> str:
        """The calls that wait for an allocation in which they fit, in words; empty if none does."""
        return ", ".join(f"{call} takes {_seconds(self._durations[call])}" for call in sorted(self._held_back))

    def opened(self, step: int) -> None:
        self._began[step] = self._clock()

    def closed(self, step: int) -> float:
        """Seconds that a step took."""
        self._step_s = self._clock() - self._began[step]
        self._closings = [*self._closings[-STEPS_MEASURED:], self._clock()]
        self.newest = max(step, self.newest)
        return self._step_s

    @property
    def step_s(self) -> float | None:
        """What one step more takes, by the newest of this attempt; None before one has closed."""
        if len(self._closings) < 2:
            return self._step_s
        return (self._closings[-1] - self._closings[0]) / (len(self._closings) - 1)

    def forget(self, steps: Iterable[int]) -> None:
        for step in steps:
            self._began.pop(step, None)

    def is_last_in_time(self) -> bool:
        """Whether the next step is the one to keep before the allocation ends, so that little is replayed after it."""
        if self._last_kept or self._step_s is None or not 1 < self.time_left_s / self._step_s < 4:
            return False
        self._last_kept = True
        return True


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"

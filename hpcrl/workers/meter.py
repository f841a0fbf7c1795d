"""What a worker measures as it executes a part of a call. Given to whoever computes; knows neither torch nor calls.

Its clock and its memory are those of a host that computes on CPUs until they are said to be a device's.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from hpcrl.figures import Figures, Seconds
from hpcrl.whereabouts import Collective, runs_of

Phase = Literal["prefill", "decode", "forward", "backward", "optimizer", "collective"]
Count = Literal["tokens", "micro_batches", "rounds", "sent"]
STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
FORGET_PEAK = "5"
"""What the kernel takes for: let the peak of memory be what is in use now (Linux ≥ 4.0, proc(5))."""


class Clock(Protocol):
    """Of what computes: a device's work may end long after the host has ordered it, and moments are compared later."""

    def now(self) -> Any:
        """A moment, before which all that was ordered so far is done."""
        ...

    def seconds(self, begin: Any, end: Any) -> float:
        """Between two of these. Waits for the second."""
        ...


class InUse(NamedTuple):
    """Bytes of memory: at most since this was last begun, and now. 0 where nobody says it."""

    peak: int
    held: int


class Memory(Protocol):
    """What is watched of memory."""

    def begin(self) -> None:
        """Let the peak be what is in use now."""
        ...

    def in_use(self) -> InUse: ...


class ProcessMemory:
    """The resident memory of this process, as the kernel counts it. Silent where it does not."""

    def __init__(self, status: Path = STATUS, clear_refs: Path = CLEAR_REFS) -> None:
        self._status = status
        self._clear_refs = clear_refs

    def begin(self) -> None:
        try:
            self._clear_refs.write_text(FORGET_PEAK)
        except OSError:  # the peak is then that of the process's life
            return

    def in_use(self) -> InUse:
        try:
            lines = self._status.read_text().splitlines()
        except OSError:
            return InUse(0, 0)
        found = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        return InUse(*(1024 * int(found[name][0]) if name in found else 0 for name in ("VmHWM", "VmRSS")))


class Meter:
    """Of one worker, which executes one part at a time."""

    def __init__(self) -> None:
        self.clock: Clock | None = None
        """A device's; None where the host computes."""
        self.collective: Collective | None = None
        """The newest operation of several ranks that this one has begun since `begin`; for any thread."""
        self.memory: Memory = ProcessMemory()
        self._seconds: dict[str, float] = {}
        self._spans: list[tuple[Phase, Any, Any]] = []
        self._counts: dict[str, int] = {}
        self._longest = 0
        self._flops = 0.0

    def begin(self) -> None:
        """Forget all that was measured."""
        self._seconds, self._spans, self._counts, self._longest, self._flops = {}, [], {}, 0, 0.0
        self.collective = None
        self.memory.begin()

    @contextmanager
    def together(self, ranks: tuple[int, ...], operation: str, number: int) -> Iterator[None]:
        """Around an operation of several ranks, which may lie in another."""
        group = runs_of(ranks)
        around, self.collective = self.collective, Collective(group, operation, number, True)
        with self.timing("collective"):
            yield
        within = around is not None and around.inside
        self.collective = around if within else Collective(group, operation, number, False)

    @contextmanager
    def timing(self, phase: Phase) -> Iterator[None]:
        """What is done within it counts as this. Collectives alone, in which the host waits, lie in other phases."""
        device = None if phase == "collective" else self.clock
        begin = time.perf_counter() if device is None else device.now()
        try:
            yield
        finally:
            if device is None:
                self._add(phase, time.perf_counter() - begin)
            else:
                self._spans.append((phase, begin, device.now()))

    def count(self, what: Count, more: int) -> None:
        self._counts[what] = self._counts.get(what, 0) + more

    def rows(self, tokens: int, longest: int, flops: float) -> None:
        """Rows of so many tokens, the longest of so many, have gone through a model by so many operations."""
        self.count("tokens", tokens)
        self._longest = max(self._longest, longest)
        self._flops += flops

    def taken(self, gather_s: float, execute_s: float, release_s: float = 0.0) -> Figures:
        """All since `begin`. Waits for the device."""
        for phase, begin, end in self._spans:
            assert self.clock is not None, phase
            self._add(phase, self.clock.seconds(begin, end))
        in_use = self.memory.in_use()
        counts: dict[str, Any] = dict(self._counts)
        return Figures(
            Seconds(gather_s, execute_s, release=release_s, **self._seconds),
            longest=self._longest,
            flops=self._flops,
            peak=in_use.peak,
            held=in_use.held,
            **counts,
        )

    def _add(self, phase: Phase, seconds: float) -> None:
        self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

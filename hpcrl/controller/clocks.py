"""Clocks and other sources of chance, as a rehearsal shows them to the user's code, and whether that has looked at any.

For a process that is a rehearsal's alone: `time`, `datetime` and `os` are changed in it. Libraries, Python's own and
hpcrl see clocks that run as ever, so that their time limits hold.
"""

import ctypes
import datetime
import gc
import os
import random
import sys
import time
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Any

from hpcrl.stacks import Frame

CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime")
AHEAD_S = 12_345_678.9
"""How far clocks are ahead that run as ever."""
EPOCH_S = 2_000_000_000.0
"""Where clocks begin that jump: whatever they decide, they decide it the same whenever a script is rehearsed."""
MOST_S = 2_000_000.0
"""How far they jump at most: it takes long, and any second, hour and day of the week may come."""


class Clocks:
    """Of the `number`-th rehearsal: the first has the real ones, the next has them ahead, and in others they jump
    ahead, by some other time, whenever the user's code looks."""

    def __init__(self, number: int) -> None:
        self.looked = False
        """Whether the user's code has looked at a clock or its process, or anybody has drawn from the system,
        libraries that are being imported apart."""
        self._ahead_s = AHEAD_S if number else 0.0
        self._jumps = random.Random(number) if number > 1 else None
        self._jumped_s = 0.0
        self._began: dict[tuple[Any, ...], Any] = {}
        """By clock, what it showed when it was first looked at."""

    def show(self) -> None:
        """From now on, to whoever does not hold the functions already."""
        self._time = time.time
        for name in CLOCKS:
            setattr(time, name, self._shown(getattr(time, name), 1))
            setattr(time, f"{name}_ns", self._shown(getattr(time, f"{name}_ns"), 10**9))
        self._show_dates()
        os.getpid = self._noted(os.getpid)
        os.urandom = self._drawn(os.urandom)
        random._urandom = self._drawn(random._urandom)  # type: ignore[attr-defined]
        random.Random.seed = self._seeded(random.Random.seed)  # type: ignore[method-assign]

    def _shown(self, clock: Callable[..., Any], unit: int) -> Callable[..., Any]:
        return lambda *which: self._read(clock, unit, sys._getframe(1), *which)

    def _read(self, clock: Callable[..., Any], unit: int, caller: FrameType | None, *which: Any) -> Any:
        """What a clock of so many units a second shows to this caller."""
        now = clock(*which)
        of = type(now)
        if caller is None or not _is_users(caller.f_code.co_filename):
            return now + of(self._ahead_s * unit)
        self.looked = True
        if self._jumps is None:
            return now + of(self._ahead_s * unit)
        self._jumped_s += self._jumps.uniform(0.0, MOST_S)
        began = self._began.setdefault((clock, which), now)
        return now - began + of((EPOCH_S + self._jumped_s) * unit)

    def _show_dates(self) -> None:
        """Functions that read the system's clock by themselves, where they are given no time."""
        localtime = time.localtime

        def seconds(caller: FrameType) -> float:
            found: float = self._read(self._time, 1, caller)
            return found

        def shown(function: Callable[..., Any], of: Callable[[float], Any]) -> Callable[..., Any]:
            def given(*at: Any) -> Any:
                return function(*at) if at and at[0] is not None else function(of(seconds(sys._getframe(1))))

            return given

        def strftime(form: str, *at: Any) -> str:
            return formatted(form, *(at or (localtime(seconds(sys._getframe(1))),)))

        def now(cls: type[datetime.datetime], tz: datetime.tzinfo | None = None) -> datetime.datetime:
            return cls.fromtimestamp(seconds(sys._getframe(1)), tz)

        def utcnow(cls: type[datetime.datetime]) -> datetime.datetime:
            return cls.fromtimestamp(seconds(sys._getframe(1)), datetime.UTC).replace(tzinfo=None)

        formatted, time.strftime = time.strftime, strftime
        for name in ("localtime", "gmtime", "ctime"):
            setattr(time, name, shown(getattr(time, name), float))
        time.asctime = shown(time.asctime, localtime)
        # datetime cannot be another class: libraries compare with it, and it is pickled by its name.
        (members,) = (it for it in gc.get_referents(datetime.datetime.__dict__) if isinstance(it, dict))
        members |= {"now": classmethod(now), "utcnow": classmethod(utcnow)}
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime.datetime))

    def _noted(self, function: Callable[[], int]) -> Callable[[], int]:
        def noted() -> int:
            self.looked = self.looked or _is_users(sys._getframe(1).f_code.co_filename)
            return function()

        return noted

    def _seeded(self, function: Callable[..., None]) -> Callable[..., None]:
        def seeded(of: random.Random, seed: Any = None, version: int = 2) -> None:
            self.looked = self.looked or (seed is None and not _in_import(sys._getframe(1)))
            function(of, seed, version)

        return seeded

    def _drawn(self, function: Callable[[int], bytes]) -> Callable[[int], bytes]:
        def drawn(size: int, /) -> bytes:
            self.looked = self.looked or not _in_import(sys._getframe(1))
            return function(size)

        return drawn


def _in_import(frame: FrameType | None) -> bool:
    """Whether a library draws while it is imported, which decides nothing of a script."""
    while frame is not None and not _is_users(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@cache
def _is_users(file: str) -> bool:
    return Frame(file, 0, "").is_users

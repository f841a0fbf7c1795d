"""What workers did beside their calls, and what memory they held: saves, as the master heard of them, and what they let
go of after a call, by their own logs and clocks. Only the lines of the time that is asked for are read.
"""

import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Literal

import msgspec

from hpcrl.event_log import Entry, decode
from hpcrl.events import MemoryHeld, ShardSaved
from hpcrl.inspect.clocks import MASTER, Clock, Clocks, read_clocks
from hpcrl.inspect.lines import Tail, first_at
from hpcrl.inspect.reader import AttemptReader

_TOLD = re.compile(r'"event":"(?:shard|held)"')


class Beside(msgspec.Struct, frozen=True):
    """A shard that was written behind the work, or parameters that left the device at a call's end. Seconds since the
    attempt began."""

    kind: Literal["save", "release"]
    name: str
    """The role that was saved; the call after which something was let go."""
    step: int
    begin_s: float
    end_s: float


class Held(msgspec.Struct, frozen=True):
    """Bytes that models held on a worker's device from then on."""

    at_s: float
    bytes: int


class Seen(msgspec.Struct, frozen=True):
    """Of one worker."""

    beside: list[Beside]
    memory: list[Held]


def read_beside(attempt: AttemptReader, began: float, begin_s: float, end_s: float) -> dict[int, Seen]:
    """By worker; `began` is in seconds since 1970."""
    run, clocks = attempt.run, read_clocks(attempt.run, attempt.number)
    seen: dict[int, Seen] = {}
    for at_s, entry in _entries(run.events(attempt.number), MASTER, clocks, (began, begin_s, end_s)):
        if isinstance(event := entry.event, ShardSaved):
            own = seen.setdefault(event.rank, Seen([], []))
            begun_s = round(max(begin_s, at_s - event.seconds), 4)
            own.beside.append(Beside("save", event.role, event.step, begun_s, at_s))
    for rank in range(len(attempt.plan.workers)):
        path = run.worker_log(attempt.number, f"worker-{rank}")
        for at_s, entry in _entries(path, f"worker-{rank}", clocks, (began, begin_s, end_s)):
            if isinstance(event := entry.event, MemoryHeld):
                _add(seen.setdefault(rank, Seen([], [])), at_s, event)
    return seen


def _add(own: Seen, at_s: float, event: MemoryHeld) -> None:
    """What a call held, and what it let go of."""
    _, during, after = (sum(column) for column in zip(*event.bytes.values(), strict=True)) if event.bytes else (0, 0, 0)
    begun_s = round(at_s - event.seconds, 4)
    own.memory.extend((Held(begun_s, during), Held(at_s, after)))
    if after < during:
        own.beside.append(Beside("release", event.call, event.step, begun_s, at_s))


def _entries(
    path: Path, process: str, clocks: Clocks, window: tuple[float, float, float]
) -> Iterator[tuple[float, Entry]]:
    """Lines of such events in the window, with the seconds from the attempt's beginning."""
    clock = clocks.of.get(process)
    began, begin_s, end_s = window
    tail = Tail(path)
    tail.skip(first_at(path, began + begin_s, None if clock is None else clock.marks[0].base))
    timed = (_timed(line, clock, began) for line in tail.each())
    inside = takewhile(lambda it: it is None or it[0] <= end_s, timed)
    return (it for it in inside if it is not None and it[0] >= begin_s)


def _timed(line: str, clock: Clock | None, began: float) -> tuple[float, Entry] | None:
    if not _TOLD.search(line):
        return None
    try:
        entry = decode(line)
    except msgspec.DecodeError:
        return None
    entry = entry if clock is None else clock.corrected(entry)
    return round(entry.time - began, 4), entry

"""What memory models held on workers' devices, by their own logs and clocks. Only the lines of the time that is asked
for are read."""

import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import msgspec

from hpcrl.event_log import Entry, decode
from hpcrl.inspect.clocks import Clock, Clocks
from hpcrl.inspect.lines import Tail, first_at
from hpcrl.inspect.reader import AttemptReader
from hpcrl.member_events import MemoryHeld

_TOLD = re.compile(r'"event":"held"')


Window = tuple[float, float, float]
"""When an attempt began, in seconds since 1970, and from when to when of it is asked for, in seconds since then."""


class Held(msgspec.Struct, frozen=True):
    """Bytes from then on."""

    at_s: float
    bytes: int


def read_held(attempt: AttemptReader, clocks: Clocks, window: Window) -> dict[int, list[Held]]:
    """By worker: what models held on its device. What a call holds is told where it is not what it held before."""
    run = attempt.run
    held: dict[int, list[Held]] = {}
    for rank in range(len(attempt.plan.workers)):
        process = f"worker-{rank}"
        path = run.worker_log(attempt.number, process)
        for at_s, entry in _entries(path, clocks.of.get(process), window):
            if isinstance(event := entry.event, MemoryHeld):
                _, during, after = map(sum, zip(*event.bytes.values(), strict=True)) if event.bytes else (0, 0, 0)
                begun_s = round(at_s - event.seconds, 4)
                held.setdefault(rank, []).extend((Held(begun_s, during), Held(at_s, after)))
    return held


def _entries(path: Path, clock: Clock | None, window: Window) -> Iterator[tuple[float, Entry]]:
    """Lines of such events in the window, with the seconds from the attempt's beginning."""
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

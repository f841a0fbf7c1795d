"""What memory models held on workers' devices, by their own logs and clocks. Only the lines of the time that is asked
for are read."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from hpcrl.event_log import Entry
from hpcrl.inspect.clocks import Clock, Clocks
from hpcrl.inspect.entries import entries_told
from hpcrl.inspect.lines import Tail, first_at
from hpcrl.inspect.reader import AttemptReader
from hpcrl.member_events import MemoryHeld

_TOLD = re.compile(r'"event":"held"')

Window = tuple[float, float, float]
"""When an attempt began, in seconds since 1970, and from when to when of it is asked for, in seconds since then."""


class BytesHeld(msgspec.Struct, frozen=True):
    """Bytes from then on."""

    at_s: float
    bytes: int


def read_held(attempt: AttemptReader, clocks: Clocks, window: Window) -> dict[int, list[BytesHeld]]:
    """By worker: what models held on its device. What a call holds is told where it is not what it held before."""
    run = attempt.run
    held: dict[int, list[BytesHeld]] = {}
    for rank in range(len(attempt.plan.workers)):
        process = f"worker-{rank}"
        path = run.worker_log(attempt.number, process)
        for at_s, entry in _entries(path, clocks.of.get(process), window):
            if isinstance(event := entry.event, MemoryHeld):
                _, during, after = map(sum, zip(*event.bytes.values(), strict=True)) if event.bytes else (0, 0, 0)
                begun_s = round(at_s - event.seconds, 4)
                held.setdefault(rank, []).extend((BytesHeld(begun_s, during), BytesHeld(at_s, after)))
    return held


def _entries(path: Path, clock: Clock | None, window: Window) -> Iterator[tuple[float, Entry]]:
    """Lines of such events in the window, with the seconds from the attempt's beginning."""
    began, begin_s, end_s = window
    tail = Tail(path)
    tail.skip(first_at(path, began + begin_s, None if clock is None else clock.marks[0].base))
    for entry in entries_told(tail.each(), _TOLD):
        at_s = round((entry if clock is None else clock.corrected(entry)).time - began, 4)
        if at_s > end_s:
            return
        if at_s >= begin_s:
            yield at_s, entry

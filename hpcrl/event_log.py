"""The files of life-cycle events: JSON lines, one file per process."""

import os
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hpcrl.events import Event
from hpcrl.member_events import LifeCycleEvent


class Entry(NamedTuple):
    """A line: an event, and when it was written."""

    time: float
    """In seconds since 1970."""
    event: Event
    mono: float = 0.0
    """In seconds, by a clock that nobody sets. It begins anywhere, when its host was started or before."""
    seq: int = 0
    """Its number in its file. One is missing where a line found no room."""


_ENCODER = msgspec.json.Encoder()
_EVENTS = msgspec.json.Decoder(Event)
_STAMPS: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
    msgspec.defstruct("Stamp", [("time", float), ("mono", float, 0.0), ("seq", int, 0)])
)


def encode(entry: Entry) -> bytes:
    """`{"time":…,"mono":…,"seq":…,"event":name,…}` and the line's end."""
    stamp = (entry.time, entry.mono, entry.seq)
    return b'{"time":%.6f,"mono":%.6f,"seq":%d,%s\n' % (*stamp, _ENCODER.encode(entry.event)[1:])


def decode(line: bytes | str) -> Entry:
    """Raises `msgspec.DecodeError` on what is damaged, and on an event that this hpcrl does not know."""
    stamp = _STAMPS.decode(line)
    return Entry(stamp.time, _EVENTS.decode(line), stamp.mono, stamp.seq)


class EventLog:
    """Appends to one file that no other process writes. A line is one write, so threads and a kill tear none apart.

    Lines are not flushed to disk: what must survive is in the journal. A line that finds no room is dropped, so that it
    neither ends the run nor hides the failure that it tells of."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._lines = count()

    def write(self, event: Event) -> Entry:
        """What was written, or would have been."""
        assert isinstance(event, LifeCycleEvent), f"{event} is no event: it is added up, and not written"
        entry = Entry(time.time(), event, time.monotonic(), next(self._lines))
        with suppress(OSError):
            os.write(self._file, encode(entry))
        return entry

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self._file).st_size

    def close(self) -> None:
        os.close(self._file)

"""The files of life-cycle events: JSON lines, one file per process."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hpcrl.events import Event


class Entry(NamedTuple):
    """A line that was read: an event, and when it was written, in seconds since 1970."""

    time: float
    event: Event


_ENCODER = msgspec.json.Encoder()
_EVENTS = msgspec.json.Decoder(Event)
_STAMPS: msgspec.json.Decoder[Any] = msgspec.json.Decoder(msgspec.defstruct("Stamp", [("time", float)]))


def encode(entry: Entry) -> bytes:
    """`{"time":…,"event":name,…}` and the line's end."""
    return b'{"time":%.6f,%s\n' % (entry.time, _ENCODER.encode(entry.event)[1:])


def decode(line: bytes | str) -> Entry:
    """Raises `msgspec.DecodeError` on what is damaged, and on an event that this hpcrl does not know."""
    return Entry(_STAMPS.decode(line).time, _EVENTS.decode(line))


class EventLog:
    """Appends to one file that no other process writes. A line is one write, so threads and a kill tear none apart.

    Lines are not flushed to disk: what must survive is in the journal. A line that finds no room is dropped, so that it
    neither ends the run nor hides the failure that it tells of."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, event: Event) -> None:
        with suppress(OSError):
            os.write(self._file, encode(Entry(time.time(), event)))

    def close(self) -> None:
        os.close(self._file)

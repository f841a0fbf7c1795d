"""Life-cycle events as JSON lines, one file per process: who did what, when. Nothing is ever decided by reading one."""

import json
import os
import time
from contextlib import suppress
from pathlib import Path


class EventLog:
    """Appends to one file that no other process writes. A line is one write, so threads and a kill tear none apart.

    Knows nothing of what the events mean. Lines are not flushed to disk: what must survive is in the journal. A line
    that finds no room is dropped: it must neither end the run nor hide the failure that it tells of.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def event(self, name: str, /, **fields: object) -> None:
        """Write {"time": seconds since 1970, "event": name, …}; what JSON lacks is written as text."""
        line = {"time": round(time.time(), 6), "event": name} | fields
        with suppress(OSError):
            os.write(self._file, json.dumps(line, default=str, ensure_ascii=False).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)

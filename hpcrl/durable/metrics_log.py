"""`metrics.jsonl` of an attempt: the rows of all steps that are closed, those of older attempts first.

The journal has them too, line for line in the same order, and is believed: what older rows are is read from here only
where it is known by size and CRC, or where the journal's own line is damaged.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from zlib import crc32

import msgspec

from hpcrl.durable.files import FileRef
from hpcrl.durable.journal import Closed
from hpcrl.durable.rundir import RunDirectory

Row = Mapping[str, float]


class MetricsLog:
    """Written by one attempt."""

    def __init__(self, run: RunDirectory, attempt: int) -> None:
        self._log = run.files.open_log(run.metrics(attempt), "metrics", flush=False)
        self._name = run.files.name(run.metrics(attempt))
        self._ends = [(0, 0)]

    def append(self, rows: Iterable[Row]) -> None:
        lines = [json.dumps(row).encode() + b"\n" for row in rows]
        if not lines:
            return
        self._log.append(lines)
        for line in lines:
            size, checksum = self._ends[-1]
            self._ends.append((size + len(line), crc32(line, checksum)))

    def first(self, rows: int) -> FileRef:
        """What holds the first so many rows, once it is on disk."""
        self._log.flush()
        size, checksum = self._ends[rows]
        return FileRef(self._name, size, checksum)

    def close(self) -> None:
        self._log.close()


def rows_shown(run: RunDirectory, attempt: int) -> Iterator[Closed]:
    """The rows that an attempt's file has, those left out that are no rows any more."""
    try:
        data = run.files.read(run.metrics(attempt))
    except OSError:
        return
    for line in data.splitlines():
        with suppress(ValueError, msgspec.ValidationError):
            row = msgspec.convert(json.loads(line), dict[str, int | float])
            if isinstance(step := row.get("step"), int):
                yield Closed(step, row)


def rows_in(data: bytes) -> Iterator[Closed]:
    """The lines of the journal that have these rows."""
    for line in data.splitlines():
        row = json.loads(line)
        yield Closed(row["step"], row)

"""The lines of a run's journals that name archives, as far as they are believed; of a few steps without reading all.

An attempt archives steps nearly in their order, so that the place of a step is found by halving. Reads only.
"""

from collections.abc import Iterator
from pathlib import Path

from hpcrl.durable.history import believed_journals
from hpcrl.durable.journal import Archived, decode_line
from hpcrl.durable.rundir import RunDirectory

SLACK = 16
"""By how many steps an archive may come later than its step's turn; a line that is further off is found by reading
all."""
NEAR_BYTES = 32 << 10
"""Where it is no use to halve on."""
_LINE = b'"type":"archived"'


def archived_lines(run: RunDirectory, first: int = 0, last: int | None = None) -> Iterator[Archived]:
    """Those of the steps from `first` to `last`, or to the end."""
    for path, size in believed_journals(run):
        size = _size(path) if size is None else size
        start = _first_at(path, size, first - SLACK) if first > SLACK else 0
        for line in _lines(path, start, size):
            if last is not None and line.step > last + SLACK:
                break
            if first <= line.step and (last is None or line.step <= last):
                yield line


def _first_at(path: Path, size: int, step: int) -> int:
    """A place before which there are only lines of earlier steps."""
    low, high = 0, size
    while high - low > NEAR_BYTES:
        middle = (low + high) // 2
        found = next(_lines(path, middle, high), None)
        low, high = (low, middle) if found is None or found.step >= step else (middle, high)
    return low


def _lines(path: Path, start: int, end: int) -> Iterator[Archived]:
    """The lines of archives between two places, from the first that begins there on."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            place = start
            if start:
                place += len(file.readline())
            while place < end and (line := file.readline(end - place)):
                place += len(line)
                if _LINE in line and isinstance(event := decode_line(line), Archived):
                    yield event
    except FileNotFoundError:
        return


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0

"""The bytes of a run's journals: whole, from a place on, and line by line from their ends.

Knows lines, not what they say, nor which of them are believed.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

from hpcrl.durable.rundir import RunDirectory

PIECE_BYTES = 256 << 10


@dataclass(frozen=True)
class JournalPart:
    """What was read of a journal, from byte `start` on; `before` is the CRC-32 of the bytes before it."""

    data: bytes
    start: int = 0
    before: int = 0

    @property
    def size(self) -> int:
        """Of the journal, as far as it was read."""
        return self.start + len(self.data)

    def until(self, end: int) -> int:
        """The CRC-32 of the journal's first `end` bytes."""
        return crc32(memoryview(self.data)[: end - self.start], self.before)


def read_journal(run: RunDirectory, attempt: int, start: int = 0, stop: int | None = None) -> bytes:
    """One that is lost says nothing. One that cannot be read now may be readable later: raises InternalError."""
    path = run.journal(attempt)
    if path.name not in run.files.listing(path.parent):
        return b""
    return run.files.read_document(
        path, "Make it readable, then resume. Without it, what it recorded is made again.", start, stop
    )


def size_of(run: RunDirectory, attempt: int) -> int:
    """How long a journal is now; 0 of one that is lost."""
    path = run.journal(attempt)
    if path.name not in run.files.listing(path.parent):
        return 0
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def lines_backwards(run: RunDirectory, attempt: int, size: int | None = None) -> Iterator[tuple[int, bytes]]:
    """The lines among the first `size` bytes (all, if None), the last first, and where each ends. What comes behind the
    last newline is no line."""
    begin, rest, is_line = size_of(run, attempt) if size is None else size, b"", False
    while begin:
        piece = read_journal(run, attempt, max(0, begin - PIECE_BYTES), begin)
        begin = max(0, begin - PIECE_BYTES)
        *lines, rest = reversed((piece + rest).split(b"\n"))
        end = begin + len(rest) + sum(len(line) + 1 for line in lines)
        for line in lines:
            if is_line:
                yield end + 1, line + b"\n"
            end, is_line = end - len(line) - 1, True
    if is_line:
        yield len(rest) + 1, rest + b"\n"

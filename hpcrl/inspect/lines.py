"""JSON-lines files that another process may still be writing, or died while writing."""

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

Row = dict[str, Any]

PIECE_BYTES, END_BYTES = 32 << 10, 4 << 10
LONGEST_LINE_BYTES = 1 << 20
"""What is longer without a line's end is given out in pieces."""
SEARCHED_BYTES = 4 << 10
STAMP, STAMP_BYTES = re.compile(rb'\{"time":([0-9.]+)'), 64
MONO = re.compile(rb'\{"time":[0-9.]+,"mono":([0-9]+(?:\.[0-9]+)?)[,}]')


class Tail:
    """Reads a file from its start, then whatever was added since; knows nothing of what the lines mean.

    Only whole lines are given out. A file that is not there yet is empty.
    """

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        """`from_end`: what is there already is passed over, but for a line that has no end yet."""
        self.path = path
        self._offset = _whole_bytes(path) if from_end else 0

    def lines(self) -> list[str]:
        """The whole lines since the last call."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                content = file.read(max(0, _size(file) - self._offset))
        except FileNotFoundError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode(errors="replace").split("\n")[:-1]

    def each(self) -> Iterator[str]:
        """The same one by one, read in pieces. What is added meanwhile is left for the next call."""
        for block in self.blocks():
            yield from block.removesuffix(b"\n").decode(errors="replace").split("\n")

    def blocks(self, least: int = PIECE_BYTES) -> Iterator[bytes]:
        """The same in pieces of whole lines with their ends, as they stand in the file."""
        try:
            end = self.path.stat().st_size
        except FileNotFoundError:
            return
        size = least
        while self._offset < end:
            piece = self._piece(min(size, end - self._offset))
            length = piece.rfind(b"\n") + 1
            if not length and self._offset + len(piece) >= end:
                return
            if not length and size < LONGEST_LINE_BYTES:
                size *= 2
                continue
            size, length = least, length or len(piece)
            self._offset += length
            yield piece[:length]

    def line(self) -> str:
        """The next whole line, with its end; nothing where there is none yet."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                line = file.readline(max(0, _size(file) - self._offset))
        except FileNotFoundError:
            return ""
        if not line.endswith(b"\n"):
            return ""
        self._offset += len(line)
        return line.decode(errors="replace")

    def skip(self, offset: int) -> None:
        """Go on from there, if that is further: a line begins there."""
        self._offset = max(self._offset, offset)

    def rest(self) -> str:
        """What stands after the last whole line: a line without an end, if its writer died."""
        try:
            return self._piece(LONGEST_LINE_BYTES).decode(errors="replace")
        except FileNotFoundError:
            return ""

    def _piece(self, size: int) -> bytes:
        with open(self.path, "rb") as file:
            file.seek(self._offset)
            return file.read(size)

    def rows(self) -> list[Row]:
        """The JSON objects among the lines since the last call; what is not one is passed over."""
        return rows_of(self.lines())


def rows_of(lines: Iterable[str]) -> list[Row]:
    """The JSON objects among lines."""
    return [row for line in lines if (row := parse(line)) is not None]


def parse(line: str) -> Row | None:
    """The JSON object of a line, or None."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def backwards(path: Path) -> Iterator[str]:
    """The whole lines of a file, the last one first, read in pieces."""
    try:
        with open(path, "rb") as file:
            place, rest, size = _whole_bytes(path), b"", END_BYTES
            while place:
                begin = max(0, place - size)
                file.seek(begin)
                first, *others = (file.read(place - begin) + rest).split(b"\n")
                yield from (line.decode(errors="replace") for line in reversed(others) if line)
                rest, place, size = first, begin, min(2 * size, LONGEST_LINE_BYTES)
            if rest:
                yield rest.decode(errors="replace")
    except FileNotFoundError:
        return


def first_at(path: Path, since: float, base: float | None = None) -> int:
    """The byte at which the first line of a log of events begins that is no older than that, or a little before it.

    Its lines stand in the order of time, which is the line's own or, with a base, `mono` and that. A line whose time
    cannot be read counts as older.
    """
    stamps, since = (STAMP, since) if base is None else (MONO, since - base)
    try:
        with open(path, "rb") as file:
            low, high = 0, file.seek(0, 2)
            while high - low > SEARCHED_BYTES:
                middle = (low + high) // 2
                file.seek(middle)
                file.readline(LONGEST_LINE_BYTES)
                stamp = stamps.match(file.readline(STAMP_BYTES))
                low, high = (low, middle) if stamp is not None and float(stamp[1]) >= since else (middle, high)
            if not low:
                return 0
            file.seek(low)
            file.readline(LONGEST_LINE_BYTES)
            return file.tell()
    except FileNotFoundError:
        return 0


def mono_of(block: bytes) -> float:
    """Of the first line of a log of events that has one; 0 where none has."""
    found = MONO.search(block)
    return 0.0 if found is None else float(found[1])


def _size(file: IO[bytes]) -> int:
    """Of a device that never ends: nothing."""
    return os.fstat(file.fileno()).st_size


def _whole_bytes(path: Path) -> int:
    """Where the last whole line ends."""
    try:
        with open(path, "rb") as file:
            place = file.seek(0, 2)
            while place:
                begin = max(0, place - END_BYTES)
                file.seek(begin)
                if (end := file.read(place - begin).rfind(b"\n")) >= 0:
                    return begin + end + 1
                place = begin
    except FileNotFoundError:
        pass
    return 0


def last_lines(path: Path, size: int) -> tuple[list[str], bool]:
    """The whole lines in the last `size` bytes of a file, and whether these are all of it."""
    try:
        with open(path, "rb") as file:
            file.seek(0, 2)
            start = max(0, file.tell() - size)
            file.seek(start)
            content = file.read()
    except FileNotFoundError:
        return [], True
    if start:
        content = content[content.find(b"\n") + 1 :]
    whole = content[: content.rfind(b"\n") + 1]
    return whole.decode(errors="replace").split("\n")[:-1], start == 0

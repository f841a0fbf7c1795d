"""Event lines as the structs that they were written from; what cannot be read so is skipped, and counted."""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from hpcrl.event_log import Entry, decode
from hpcrl.inspect.lines import Tail


class EntryTail:
    """The events of one process, from the first one, as they come. `skipped`: lines that were damaged or unknown."""

    def __init__(self, path: Path, follow: Callable[[str], bool] = lambda _line: False) -> None:
        """`follow` is given the lines that are no events, and says which of them it knows."""
        self._tail = Tail(path)
        self._follow = follow
        self.skipped = 0

    def each(self) -> Iterator[Entry]:
        """The events since the last call, one by one. Those that nobody has asked for are left for the next call."""
        while line := self._tail.line():
            if entry := self._entry(line):
                yield entry

    def skip(self, offset: int) -> None:
        """Go on from that byte, if it is further: a line begins there."""
        self._tail.skip(offset)

    def read(self) -> list[Entry]:
        """The events since the last call."""
        return [entry for line in self._tail.lines() if (entry := self._entry(line))]

    def _entry(self, line: str) -> Entry | None:
        entry = entry_of(line)
        self.skipped += entry is None and not self._follow(line)
        return entry


def entries_of(lines: Iterable[str]) -> list[Entry]:
    """The events among lines."""
    return [entry for line in lines if (entry := entry_of(line)) is not None]


def entries_told(lines: Iterable[str], kinds: re.Pattern[str]) -> Iterator[Entry]:
    """The events among lines that this pattern finds; other lines are not decoded."""
    return (entry for line in lines if kinds.search(line) and (entry := entry_of(line)) is not None)


def entry_of(line: bytes | str) -> Entry | None:
    """The event of a line; None where it is damaged, or of a kind that this hpcrl does not know."""
    try:
        return decode(line)
    except msgspec.DecodeError:
        return None

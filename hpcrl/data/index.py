"""The index of a source: where each of its rows lies, a checksum of it, and its id. Knows nothing of what is in a row.

Ids stay in the mapped file: a list of a million of them as Python objects would be 80 MB in every process.
"""

import mmap
import zlib
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import overload

import numpy as np

from hpcrl.data.table import Table

_CHUNK = 4096
_PIECE = 1 << 16


class RowIndex:
    """Rows are numbered from 0, in the order of the source."""

    def __init__(self, table: Table) -> None:
        columns = table.columns
        self.offsets, self.sizes, self.crcs = columns["offsets"], columns["sizes"], columns["crcs"]
        """Of each row: where it begins in its file, how many bytes it has, and their CRC-32."""
        self._ends = columns.get("id_ends")
        if self._ends is not None:
            self._ids, self._hashes, self._rows = columns["ids"], columns["hashes"], columns["rows"]

    def __len__(self) -> int:
        return len(self.offsets)

    def id(self, row: int) -> str:
        """What the row is called: its own id, else its number."""
        return str(row) if self._ends is None else self._bytes(row).decode()

    def ids(self, rows: np.ndarray) -> Iterator[str]:
        """As `id`, for many."""
        if self._ends is None:
            yield from map(str, rows.tolist())
            return
        for row in rows.tolist():
            yield self._bytes(row).decode()

    def find(self, row_id: str) -> int | None:
        """The row of this id."""
        if self._ends is None:
            number = int(row_id) if row_id.isascii() and row_id.isdigit() else -1
            return number if 0 <= number < len(self) and str(number) == row_id else None
        wanted = row_id.encode()
        key = np.uint32(zlib.crc32(wanted))
        first, last = np.searchsorted(self._hashes, key, "left"), np.searchsorted(self._hashes, key, "right")
        return next((row for row in self._rows[first:last].tolist() if self._bytes(row) == wanted), None)

    def _bytes(self, row: int) -> bytes:
        assert self._ends is not None
        return self._ids[self._ends[row - 1] if row else 0 : self._ends[row]].tobytes()


class RowIds(Sequence[str]):
    """The ids of some rows of an index, which stay in it: those at `rows`, ascending."""

    def __init__(self, of: RowIndex, rows: np.ndarray) -> None:
        self.of = of
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> "RowIds": ...
    def __getitem__(self, at: int | slice) -> "str | RowIds":
        return RowIds(self.of, self.rows[at]) if isinstance(at, slice) else self.of.id(int(self.rows[at]))

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self.rows), _CHUNK):
            yield from self.of.ids(self.rows[start : start + _CHUNK])

    def __contains__(self, row_id: object) -> bool:
        row = self.of.find(row_id) if isinstance(row_id, str) else None
        if row is None:
            return False
        at = int(np.searchsorted(self.rows, row))
        return at < len(self.rows) and int(self.rows[at]) == row

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]


class _Numbers:
    """Numbers that are added one by one, in memory that grows where it is: copies of it would leave holes behind."""

    def __init__(self, typecode: str) -> None:
        self._last = array(typecode)
        self._map = mmap.mmap(-1, _PIECE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._bytes = 0

    def append(self, number: int) -> None:
        self._last.append(number)
        if len(self._last) == _PIECE:
            self._flush()

    def extend(self, numbers: bytes) -> None:
        self._last.frombytes(numbers)
        if len(self._last) >= _PIECE:
            self._flush()

    def whole(self) -> np.ndarray:
        """All of them; none may be added after."""
        self._flush()
        return np.frombuffer(self._map, self._last.typecode, self._bytes // self._last.itemsize)

    def _flush(self) -> None:
        added = self._last.tobytes()
        while self._bytes + len(added) > len(self._map):
            self._map.resize(2 * len(self._map))
        self._map[self._bytes : self._bytes + len(added)] = added
        self._bytes += len(added)
        del self._last[:]


class IndexBuilder:
    """Takes rows one by one; about 30 bytes of memory for each, 50 at the end."""

    def __init__(self) -> None:
        self._count = 0
        self._sizes, self._crcs = _Numbers("I"), _Numbers("I")
        self._ids, self._id_sizes, self._hashes = _Numbers("B"), _Numbers("I"), _Numbers("I")
        self._counted = True
        self._next = (0, 0)  # the line and offset of a row that follows the last one at once
        # Of the rows that don't: their number, line and offset.
        self._later, self._later_lines, self._later_offsets = array("Q"), array("Q"), array("Q")

    def __len__(self) -> int:
        return self._count

    def add(self, line: int, offset: int, row: bytes, row_id: str | None) -> None:
        """A row at `offset`, which is on this line; without an id it is called by its number."""
        number, self._count = self._count, self._count + 1
        if not number or (line, offset) != self._next:
            self._later.append(number)
            self._later_lines.append(line)
            self._later_offsets.append(offset)
        self._next = (line + 1, offset + len(row))
        name = str(number) if row_id is None else row_id
        self._counted &= name == str(number)
        self._sizes.append(len(row))
        self._crcs.append(zlib.crc32(row))
        encoded = name.encode()
        self._ids.extend(encoded)
        self._id_sizes.append(len(encoded))
        self._hashes.append(zlib.crc32(encoded))

    def table(self, about: str) -> Table:
        """What `RowIndex` reads."""
        columns = {"offsets": self._offsets(), "sizes": self._sizes.whole(), "crcs": self._crcs.whole()}
        if not self._counted:
            hashes, rows = self._by_hash
            columns |= {"id_ends": self._id_ends, "ids": self._ids.whole()}
            columns |= {"hashes": hashes, "rows": rows}
        return Table(about, columns)

    def repeated(self) -> Iterator[tuple[str, list[int]]]:
        """Each id that several rows have, and their lines."""
        if self._counted:
            return
        hashes, rows = self._by_hash
        found, ids, sizes = defaultdict[str, list[int]](list), self._ids.whole(), self._id_sizes.whole()
        alike = hashes[1:] == hashes[:-1]
        for row in rows[np.append(alike, False) | np.append(False, alike)].tolist():
            end = int(self._id_ends[row])
            found[ids[end - int(sizes[row]) : end].tobytes().decode()].append(self._line_of(row))
        yield from ((name, lines) for name, lines in found.items() if len(lines) > 1)

    def _line_of(self, row: int) -> int:
        at = bisect_right(self._later, row) - 1
        return self._later_lines[at] + row - self._later[at]

    def _offsets(self) -> np.ndarray:
        found = _zeros(len(self), np.uint64)
        np.cumsum(self._sizes.whole()[:-1], dtype=np.uint64, out=found[1:])
        bounds = pairwise([*self._later, len(self)])
        for (begin, end), offset in zip(bounds, self._later_offsets, strict=True):
            found[begin:end] += np.uint64(offset) - found[begin]
        return found

    @cached_property
    def _id_ends(self) -> np.ndarray:
        found = _zeros(len(self), np.uint32 if len(self._ids.whole()) < 1 << 32 else np.uint64)
        return np.cumsum(self._id_sizes.whole(), dtype=found.dtype, out=found)

    @cached_property
    def _by_hash(self) -> tuple[np.ndarray, np.ndarray]:
        """The hashes of ids in order, and whose they are; no row may be added after."""
        both, rows, hashes = _zeros(len(self), np.uint64), _zeros(len(self), np.uint32), self._hashes.whole()
        for at in range(0, len(self), _PIECE):
            piece = slice(at, at + _PIECE)
            both[piece] = hashes[piece].astype(np.uint64) << np.uint64(32) | np.arange(
                at, at + len(both[piece]), dtype=np.uint64
            )
        both.sort()
        for at in range(0, len(self), _PIECE):
            piece = slice(at, at + _PIECE)
            hashes[piece] = both[piece] >> np.uint64(32)
            rows[piece] = both[piece] & np.uint64(0xFFFFFFFF)
        return hashes, rows


def _zeros(count: int, dtype: type) -> np.ndarray:
    """In memory of their own, which the system has back at once."""
    size = count * np.dtype(dtype).itemsize
    found = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(found, dtype, count)

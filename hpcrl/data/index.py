"""The index of a source: where each of its rows lies, a checksum of it, and its id. Knows nothing of what is in a row.

Ids stay in the mapped file: a list of a million of them as Python objects would be 80 MB in every process.
"""

import zlib
from array import array
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from hpcrl.data.table import Table

_CHUNK = 4096


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


class IndexBuilder:
    """Takes rows one by one; about 30 bytes of memory for each."""

    def __init__(self) -> None:
        self._offsets, self._sizes, self._crcs = array("Q"), array("I"), array("I")
        self._lines = array("Q")
        self._ids, self._ends, self._hashes = bytearray(), array("Q"), array("I")
        self._counted = True

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, line: int, offset: int, row: bytes, row_id: str | None) -> None:
        """A row at `offset`, which is on this line; without an id it is called by its number."""
        name = str(len(self)) if row_id is None else row_id
        self._counted &= name == str(len(self))
        self._offsets.append(offset)
        self._sizes.append(len(row))
        self._crcs.append(zlib.crc32(row))
        self._lines.append(line)
        encoded = name.encode()
        self._ids += encoded
        self._ends.append(len(self._ids))
        self._hashes.append(zlib.crc32(encoded))

    def table(self, about: str) -> Table:
        """What `RowIndex` reads."""
        columns = {"offsets": _of(self._offsets), "sizes": _of(self._sizes), "crcs": _of(self._crcs)}
        if not self._counted:
            ends, rows = _of(self._ends), self._by_hash()
            small = ends.astype(np.uint32) if len(self._ids) < 1 << 32 else ends
            columns |= {"id_ends": small, "ids": np.frombuffer(self._ids, np.uint8)}
            columns |= {"hashes": _of(self._hashes)[rows], "rows": rows}
        return Table(about, columns)

    def repeated(self) -> Iterator[tuple[str, int, int]]:
        """(id, line of the row that has it first, line of one that has it again)."""
        if self._counted:
            return
        rows = self._by_hash()
        hashes = _of(self._hashes)[rows]
        index = RowIndex(self.table(""))
        first: dict[str, int] = {}
        alike = hashes[1:] == hashes[:-1]
        for row in rows[np.append(alike, False) | np.append(False, alike)].tolist():
            before = first.setdefault(index.id(row), row)
            if before != row:
                yield index.id(row), self._lines[before], self._lines[row]

    def _by_hash(self) -> np.ndarray:
        return np.argsort(_of(self._hashes), kind="stable").astype(np.uint32)


def _of(numbers: "array[int]") -> np.ndarray:
    """A view of them, not a copy."""
    return np.frombuffer(numbers, numbers.typecode) if len(numbers) else np.zeros(0, numbers.typecode)

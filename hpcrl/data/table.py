"""Columns of numbers in one file with a checksum, mapped into memory: all processes of a node share its pages.

The file is a line of JSON, padded to a multiple of 8 bytes, the columns, each padded so, and the CRC-32 of all that is
before it.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

_ALIGNED = 8
_PIECE_BYTES = 4 << 20


class _Column(msgspec.Struct, frozen=True):
    name: str
    dtype: str
    """Little endian, as numpy writes it."""
    count: int


class _Header(msgspec.Struct, frozen=True):
    about: str
    columns: tuple[_Column, ...]


@dataclass(frozen=True)
class Table:
    """`about` says what the columns are of. They cannot be written to."""

    about: str
    columns: Mapping[str, np.ndarray]


def encode_table(table: Table) -> Sequence[bytes | memoryview]:
    """The content of the file, in pieces; the columns are not copied."""
    columns = {name: np.ascontiguousarray(array) for name, array in table.columns.items()}
    described = tuple(_Column(name, array.dtype.str, len(array)) for name, array in columns.items())
    line = msgspec.json.encode(_Header(table.about, described))
    chunks: list[bytes | memoryview] = [line + b" " * (-(len(line) + 1) % _ALIGNED) + b"\n"]
    for array in columns.values():
        chunks += [array.view(np.uint8).data, bytes(-array.nbytes % _ALIGNED)]
    crc = 0
    for chunk in chunks:
        crc = zlib.crc32(chunk, crc)
    return [*chunks, crc.to_bytes(4, "little")]


def open_table(path: Path) -> Table:
    """Raises ValueError where the file is not what was written, OSError where it cannot be read."""
    _check(path)
    whole = np.memmap(path, np.uint8, "r")
    with path.open("rb") as file:
        line = file.readline()
    header = msgspec.json.decode(line, type=_Header)
    columns, at = {}, len(line)
    for column in header.columns:
        dtype = np.dtype(column.dtype)
        end = at + column.count * dtype.itemsize
        columns[column.name] = whole[at:end].view(dtype)
        at = end + -end % _ALIGNED
    return Table(header.about, columns)


def _check(path: Path) -> None:
    """Reads without mapping: pages that are only checked do not count as this process's memory."""
    left, crc = path.stat().st_size - 4, 0
    with path.open("rb") as file:
        while left > 0 and (piece := file.read(min(left, _PIECE_BYTES))):
            crc, left = zlib.crc32(piece, crc), left - len(piece)
        if left or file.read() != crc.to_bytes(4, "little"):
            raise ValueError(f"{path} is damaged: its checksum is another")

"""The records of a `.wandb` file: LevelDB's log format, behind a head of seven bytes (W&B's `transactionlog`)."""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

BLOCK_BYTES = 1 << 15
HEAD_BYTES = 7
_RECORD = struct.Struct("<IHB")
"""Checksum, bytes, kind."""
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path: Path) -> Iterator[bytes]:
    """Those that are whole, up to the first that is not."""
    data, at, begun = path.read_bytes(), HEAD_BYTES, b""
    while at + _RECORD.size <= len(data):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < _RECORD.size:  # too few for another head: zeros
            at += left
            continue
        checksum, size, kind = _RECORD.unpack_from(data, at)
        piece = data[at + _RECORD.size : at + _RECORD.size + size]
        if len(piece) < size or zlib.crc32(piece, zlib.crc32(bytes([kind]))) != checksum:
            return
        at += _RECORD.size + size
        begun = piece if kind in (FULL, FIRST) else begun + piece
        if kind in (FULL, LAST):
            yield begun

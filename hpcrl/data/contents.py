"""What is in files: checksums of all of their bytes, read by several threads, and stamps by which they are known again.

A file whose size and times are those that it had when it was read is not read again.
"""

import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from hpcrl.errors import DataError

BLOCK_BYTES = 16 << 20
PIECE_BYTES = 512 << 10
READERS = 8
"""More than there may be cores: a network disk answers several at once."""

Told = Callable[[int, int], None]
"""Told how many bytes of how many have been read."""


def nobody(_read: int, _of: int) -> None:
    """Nobody is told."""


class Stamp(msgspec.Struct, frozen=True):
    """By what a file is known without being read: bytes, when it was written, when anything about it changed (ns)."""

    size: int
    mtime_ns: int
    ctime_ns: int


def stamp_of(file: Path | int) -> Stamp:
    """Of a path or a descriptor. Raises OSError."""
    status = os.stat(file)
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class Seen(msgspec.Struct, frozen=True):
    """The checksum of a file that was read when it had this stamp."""

    path: str
    stamp: Stamp
    checksum: str


class Contents:
    """Checksums of files; of those that somebody has `seen` before with the stamp that they have, without reading."""

    def __init__(self, seen: Iterable[Seen] = (), told: Told = nobody) -> None:
        self._told = told
        self._known = {(each.path, each.stamp): each.checksum for each in seen}
        self.read: list[Seen] = []
        """What this object has read itself."""

    def find(self, path: Path, stamp: Stamp) -> str | None:
        """The checksum of a file with this stamp, if it was read before."""
        return self._known.get((str(path), stamp))

    def checksums(self, paths: Iterable[Path]) -> dict[Path, str]:
        """The checksum of each file; those that are not known are read, all together.

        Raises:
            OSError: a file cannot be read.
            DataError: a file changed while it was read.
        """
        stamps = {path: stamp_of(path) for path in paths}
        unread = [path for path, stamp in stamps.items() if self.find(path, stamp) is None]
        found = _checksums(unread, [stamps[path].size for path in unread], self._told)
        for path, checksum in zip(unread, found, strict=True):
            refuse_written(path, stamps[path])
            self._known[str(path), stamps[path]] = checksum
            self.read.append(Seen(str(path), stamps[path], checksum))
        return {path: self._known[str(path), stamp] for path, stamp in stamps.items()}


def refuse_written(path: Path, before: Stamp) -> None:
    """Raise DataError where a file is no longer what it was when reading it began."""
    if stamp_of(path) != before:
        raise DataError(f"{path} changed while it was read.", "Let whatever writes it end, then try again.")


def _checksums(paths: Sequence[Path], sizes: Sequence[int], told: Told) -> list[str]:
    """CRC-32 of the CRCs of all blocks of a file, in hexadecimal."""
    if not paths:
        return []
    blocks = [(path, start) for path, size in zip(paths, sizes, strict=True) for start in range(0, size, BLOCK_BYTES)]
    with ThreadPoolExecutor(min(READERS, len(blocks) or 1), thread_name_prefix="checksum") as readers:
        crcs, whole = {}, sum(sizes)
        for block, crc in zip(blocks, readers.map(lambda block: _crc(*block), blocks), strict=True):
            crcs[block] = crc
            told(min(len(crcs) * BLOCK_BYTES, whole), whole)
    return [f"{zlib.crc32(b''.join(crc for (of, _), crc in crcs.items() if of == path)):08x}" for path in paths]


def _crc(path: Path, start: int) -> bytes:
    """Of one block."""
    crc, buffer = 0, memoryview(bytearray(PIECE_BYTES))
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for offset in range(start, start + BLOCK_BYTES, PIECE_BYTES):
            while count := os.preadv(descriptor, [buffer], offset):
                crc = zlib.crc32(buffer[:count], crc)
                offset += count
                if offset % PIECE_BYTES == 0:
                    break
    finally:
        os.close(descriptor)
    return crc.to_bytes(4)

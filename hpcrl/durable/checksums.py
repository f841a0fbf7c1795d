"""CRC-32 of long files: their pieces are read side by side, and what is known of pieces is put together."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from itertools import pairwise
from pathlib import Path
from zlib import crc32

from hpcrl.durable.files import Files

READERS = 4
LEAST_BYTES = 16 << 20
"""Of what a reader is given."""
_POLYNOMIAL = 0xEDB88320
_Operator = Sequence[int]
"""Of bits on the 32 of a checksum: a column for each."""


def crc32_of(files: Files, path: Path, size: int) -> int | None:
    """The checksum of the first `size` bytes; None where there are not so many. Raises OSError."""
    readers = max(1, min(READERS, size // LEAST_BYTES))
    with ThreadPoolExecutor(readers) as pool:
        ends = [size * i // readers for i in range(readers + 1)]
        found = [*pool.map(lambda span: _of_span(files, path, *span), pairwise(ends))]
    if sum(length for length, _ in found) != size:
        return None
    return reduce(lambda before, part: joined(before, part[1], part[0]), found, 0)


def joined(first: int, second: int, second_bytes: int) -> int:
    """The checksum of two contents, one behind the other, of which those of each and the second's length are known."""
    operator = _squared(_squared(_squared((_POLYNOMIAL, *(1 << bit for bit in range(31))))))  # of a byte of zeros
    while second_bytes:
        if second_bytes & 1:
            first = _applied(operator, first)
        operator, second_bytes = _squared(operator), second_bytes >> 1
    return first ^ second


def _of_span(files: Files, path: Path, start: int, stop: int) -> tuple[int, int]:
    """How many bytes there are between two places, and their checksum."""
    size = checksum = 0
    for piece in files.pieces(path, start, stop):
        size += len(piece)
        checksum = crc32(piece, checksum)
    return size, checksum


def _applied(operator: _Operator, bits: int) -> int:
    return reduce(int.__xor__, (column for bit, column in enumerate(operator) if bits >> bit & 1), 0)


def _squared(operator: _Operator) -> _Operator:
    return tuple(_applied(operator, column) for column in operator)

"""Checksums of bit patterns that add up over whoever holds the elements, equal in any layout where the bits are.

Σ bits · (2(n + i) + 1) · c mod 2^64 over elements: n is a number of their parameter's name, i their index in the whole
parameter. Compiled, or in numpy; `hpcrl.engines.checksum` has the same in torch. Shape legend: N rectangles.
"""

import ctypes
import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hpcrl.families.places import Span
from hpcrl.ops.library import compiled
from hpcrl.ops.rectangles import Memory, check

SIZES = (2, 4, 8)
MASK = 2**64 - 1
ODD_STEP = 0x9E3779B97F4A7C15
AT_ONCE = 64 << 10
"""Elements that numpy is given at once."""


def number_of(parameter: str) -> int:
    """Far from those of other parameters, and small enough for what is added to it to stay in 63 bits."""
    return int.from_bytes(hashlib.blake2b(parameter.encode(), digest_size=8).digest(), "little") >> 4


class Weights:
    """Where rectangles lie in a buffer, and what their elements weigh in a checksum: of any array that has its own
    there. Raises ValueError where a rectangle leaves a buffer of `numel` elements."""

    def __init__(self, spans: Sequence[Span], numel: int) -> None:
        places = [span.place for span in spans]
        columns = [(span.offset, span.step, span.place.rows, span.place.run) for span in spans]
        placed = np.array(columns, np.int64).reshape(-1, 4).T.copy()
        check(Memory(0, numel, 1), *placed)
        firsts = [(2 * (number_of(place.parameter) + place.first) + 1) & MASK for place in places]
        weights = np.array([firsts, [2 * place.stride for place in places]], np.uint64)
        self.count, self.numel = len(spans), numel
        self._columns = (*placed, *weights)
        self.addresses = [ctypes.c_void_p(column.ctypes.data) for column in self._columns]
        """Of offsets, steps, rows, runs; of the weight of each rectangle's first element, which grows by 2 from element
        to element, and of how much it grows from run to run."""


def checksums_of(arrays: Iterable[np.ndarray], spans: Sequence[Span], numel: int) -> list[int]:
    """Those of contiguous 1-D arrays of `numel` elements, which all have theirs where `spans` say. They are asked for
    one after another."""
    weights, found = Weights(spans, numel), []
    for array in arrays:
        total = compiled_checksum(Memory(array.ctypes.data, len(array), array.itemsize), weights)
        total = total_in_numpy(array, spans) if total is None else total
        found.append((total * ODD_STEP) & MASK)
    return found


def compiled_total(memory: Memory, spans: Sequence[Span]) -> int | None:
    """Σ bits · (2(n + i) + 1) mod 2^64 of host memory; None where it is not compiled. Raises ValueError as above."""
    return compiled_checksum(memory, Weights(spans, memory.numel))


def total_in_numpy(array: np.ndarray, spans: Sequence[Span]) -> int:
    """The same."""
    bits = array.view(np.dtype(f"i{array.itemsize}").newbyteorder("="))
    total = 0
    for span in spans:
        place, size = span.place, bits.itemsize
        held = as_strided(bits[span.offset :], (place.rows, place.run), (span.step * size, size), writeable=False)
        first = 2 * (number_of(place.parameter) + place.first) + 1
        for row, run in enumerate(held):
            for begin in range(0, place.run, AT_ONCE):
                piece = run[begin : begin + AT_ONCE].astype(np.int64).view(np.uint64)
                weights = 2 * np.arange(len(piece), dtype=np.uint64)
                weights += np.uint64((first + 2 * (place.stride * row + begin)) & MASK)
                total += int((piece * weights).sum(dtype=np.uint64))
    return total & MASK


def compiled_checksum(memory: Memory, weights: Weights) -> int | None:
    """Σ bits · weight mod 2^64, where bits are signed. None where nothing was compiled."""
    assert memory.numel >= weights.numel, (memory.numel, weights.numel)
    library = compiled()
    if library is None or memory.itemsize not in SIZES:
        return None
    library.hpcrl_checksum.restype = ctypes.c_uint64
    return int(
        library.hpcrl_checksum(
            ctypes.c_void_p(memory.address),
            *weights.addresses,
            ctypes.c_int64(weights.count),
            ctypes.c_int64(memory.itemsize),
        )
    )

"""Checksums of bit patterns that add up over whoever holds the elements, equal in any layout where the bits are.

Σ bits · (2(n + i) + 1) · c mod 2^64 over elements: n is a number of their parameter's name, i their index in the whole
parameter. Compiled, or in numpy; `hpcrl.engines.checksum` has the same in torch. Shape legend: N rectangles.
"""

import ctypes
import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hpcrl.families.places import Span
from hpcrl.ops.library import compiled
from hpcrl.ops.rectangles import Memory, Runs, check

SIZES = (2, 4, 8)
MASK = 2**64 - 1
ODD_STEP = 0x9E3779B97F4A7C15
AT_ONCE = 64 << 10
"""Elements that numpy is given at once."""


def number_of(parameter: str) -> int:
    """Far from those of other parameters, and small enough for what is added to it to stay in 63 bits."""
    return int.from_bytes(hashlib.blake2b(parameter.encode(), digest_size=8).digest(), "little") >> 4


def checksum_of(array: np.ndarray, spans: Sequence[Span]) -> int:
    """That of a contiguous 1-D array, which has its elements where `spans` say."""
    total = compiled_total(Memory(array.ctypes.data, len(array), array.itemsize), spans)
    return ((total_in_numpy(array, spans) if total is None else total) * ODD_STEP) & MASK


def compiled_total(memory: Memory, spans: Sequence[Span]) -> int | None:
    """Σ bits · (2(n + i) + 1) mod 2^64 of host memory; None where it is not compiled."""
    places = [span.place for span in spans]
    columns = [(span.offset, span.step, span.place.rows, span.place.run) for span in spans]
    offsets, steps, rows, runs = np.array(columns, np.int64).reshape(-1, 4).T
    weights = [(2 * (number_of(place.parameter) + place.first) + 1) & MASK for place in places]
    return compiled_checksum(
        memory,
        Runs(offsets, steps),
        rows,
        runs,
        np.array(weights, np.uint64),
        np.array([2 * place.stride for place in places], np.uint64),
    )


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


def compiled_checksum(
    memory: Memory, placed: Runs, rows_N: np.ndarray, runs_N: np.ndarray, weights_N: np.ndarray, steps_N: np.ndarray
) -> int | None:
    """Σ bits · weight mod 2^64, where bits are signed. The weight of a rectangle's first element is `weights_N`; it
    grows by 2 from element to element and by `steps_N` from run to run; uint64. None where nothing was compiled.

    Raises ValueError where a rectangle leaves its buffer.
    """
    library = compiled()
    if library is None or memory.itemsize not in SIZES:
        return None
    columns = [np.ascontiguousarray(column, np.int64) for column in (*placed, rows_N, runs_N)]
    check(memory, *columns)
    columns += [np.ascontiguousarray(column, np.uint64) for column in (weights_N, steps_N)]
    library.hpcrl_checksum.restype = ctypes.c_uint64
    return int(
        library.hpcrl_checksum(
            ctypes.c_void_p(memory.address),
            *(column.ctypes.data_as(ctypes.c_void_p) for column in columns),
            ctypes.c_int64(len(rows_N)),
            ctypes.c_int64(memory.itemsize),
        )
    )

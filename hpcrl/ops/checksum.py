"""Checksums of rectangles of a buffer, where that is compiled. `hpcrl.engines.checksum` has the same in torch.

Shape legend: N rectangles.
"""

import ctypes

import numpy as np

from hpcrl.ops.library import compiled
from hpcrl.ops.rectangles import Memory, Runs, check

SIZES = (2, 4, 8)


def compiled_checksum(
    memory: Memory, placed: Runs, rows_N: np.ndarray, runs_N: np.ndarray, weights_N: np.ndarray, steps_N: np.ndarray
) -> int | None:
    """Σ bits · weight mod 2^64, where bits are signed. The weight of a rectangle's first element is `weights_N`; it
    grows by 2 from element to element and by `steps_N` from run to run; uint64. None where nothing was compiled.

    Raises ValueError where a rectangle leaves its buffer.
    """
    function = getattr(compiled(), "hpcrl_checksum", None)
    if function is None or memory.itemsize not in SIZES:
        return None
    columns = [np.ascontiguousarray(column, np.int64) for column in (*placed, rows_N, runs_N)]
    check(memory, *columns)
    columns += [np.ascontiguousarray(column, np.uint64) for column in (weights_N, steps_N)]
    function.restype = ctypes.c_uint64
    return int(
        function(
            ctypes.c_void_p(memory.address),
            *(column.ctypes.data_as(ctypes.c_void_p) for column in columns),
            ctypes.c_int64(len(rows_N)),
            ctypes.c_int64(memory.itemsize),
        )
    )

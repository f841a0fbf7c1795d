"""Rectangles of one buffer to rectangles of another: compiled and on OMP_NUM_THREADS threads, or in numpy, alike.

Buffers of host memory are told by their addresses, so that tensors need no copy and numpy no bf16.
Shape legend: N rectangles.
"""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hpcrl.ops.library import compiled

UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


class Memory(NamedTuple):
    """`numel` neighbouring elements of `itemsize` bytes; whoever gives an address keeps what is there alive."""

    address: int
    numel: int
    itemsize: int


class Runs(NamedTuple):
    """Where N rectangles lie in a buffer: each one's first element, and how far apart its runs begin; int64."""

    offsets_N: np.ndarray
    steps_N: np.ndarray


def copy_rectangles(
    source: Memory, sent: Runs, target: Memory, received: Runs, rows_N: np.ndarray, runs_N: np.ndarray
) -> None:
    """Copy `rows_N` runs of `runs_N` elements each from one buffer to another. The rectangles do not overlap.

    Raises:
        ValueError: elements differ in size, or have another than 1, 2, 4 or 8 bytes; a rectangle leaves its buffer.
    """
    columns = _checked(source, sent, target, received, rows_N, runs_N)
    library = compiled()
    if library is None:
        in_numpy(source, target, columns)
        return
    from_, from_steps, to, to_steps, rows, runs = (column.ctypes.data_as(ctypes.c_void_p) for column in columns)
    library.hpcrl_copy_rectangles(
        ctypes.c_void_p(source.address),
        from_,
        from_steps,
        ctypes.c_void_p(target.address),
        to,
        to_steps,
        rows,
        runs,
        ctypes.c_int64(len(columns[0])),
        ctypes.c_int64(source.itemsize),
    )


class Launch(NamedTuple):
    """What one launch copies on a GPU, where the columns lie as csrc/rectangles.cu has them, [7, N]."""

    columns_7N: np.ndarray
    total: int
    itemsize: int

    def begin(self, library: ctypes.CDLL, source: int, target: int, columns: int, stream: int) -> None:
        """Between buffers, and with columns, at these addresses of a device. Raises RuntimeError with CUDA's code."""
        numbers = (self.columns_7N.shape[1], self.total, self.itemsize)
        addresses = [ctypes.c_void_p(address) for address in (source, target, columns)]
        code = library.hpcrl_copy_rectangles_cuda(*addresses, *map(ctypes.c_int64, numbers), ctypes.c_void_p(stream))
        if code:
            raise RuntimeError(f"CUDA refused to copy rectangles: error {code}")


def launch(
    source: Memory, sent: Runs, target: Memory, received: Runs, rows_N: np.ndarray, runs_N: np.ndarray
) -> Launch:
    """As `copy_rectangles`, by a GPU: in the widest elements, of at most 8 bytes, in which all rectangles are whole."""
    columns = _checked(source, sent, target, received, rows_N, runs_N)
    size = source.itemsize
    common = np.gcd.reduce(np.concatenate([*columns[:4], columns[5], [source.address // size, target.address // size]]))
    wide = next(many for many in (8, 4, 2, 1) if many * size <= 8 and common % many == 0)
    columns = [column if number == 4 else column // wide for number, column in enumerate(columns)]
    ends = np.cumsum(columns[4] * columns[5])
    return Launch(np.stack([*columns, ends - columns[4] * columns[5]]), int(ends[-1]) if len(ends) else 0, wide * size)


def in_numpy(source: Memory, target: Memory, columns: Sequence[np.ndarray]) -> None:
    """The same, one rectangle after another; offsets and steps of the source, of the target, rows, runs."""
    had, gets = _array(source), _array(target)
    for first, step, at, to_step, rows, run in zip(*(column.tolist() for column in columns), strict=True):
        if rows and run:
            _runs(gets, at, to_step, rows, run)[:] = _runs(had, first, step, rows, run)


def _array(memory: Memory) -> np.ndarray:
    held = (ctypes.c_char * (memory.numel * memory.itemsize)).from_address(memory.address)
    return np.frombuffer(memoryview(held), UNSIGNED[memory.itemsize])


def _runs(array: np.ndarray, offset: int, step: int, rows: int, run: int) -> np.ndarray:
    return as_strided(array[offset:], (rows, run), (step * array.itemsize, array.itemsize))


def _checked(
    source: Memory, sent: Runs, target: Memory, received: Runs, rows_N: np.ndarray, runs_N: np.ndarray
) -> list[np.ndarray]:
    if source.itemsize != target.itemsize or source.itemsize not in UNSIGNED:
        raise ValueError(
            f"elements have {source.itemsize} and {target.itemsize} bytes; 1, 2, 4 or 8 on both sides are needed"
        )
    columns = [np.ascontiguousarray(column, np.int64) for column in (*sent, *received, rows_N, runs_N)]
    for memory, first in ((source, 0), (target, 2)):
        check(memory, columns[first], columns[first + 1], columns[4], columns[5])
    return columns


def check(memory: Memory, offsets: np.ndarray, steps: np.ndarray, rows: np.ndarray, runs: np.ndarray) -> None:
    """Raises ValueError where a rectangle leaves its buffer."""
    columns = (offsets, steps, rows, runs)
    if len({column.shape for column in columns}) > 1 or offsets.ndim != 1:
        raise ValueError(f"the columns have shapes {[column.shape for column in columns]}; equal ones are needed")
    ends = offsets + np.maximum(rows - 1, 0) * steps + runs
    if len(offsets) and (min(column.min() for column in columns) < 0 or ends.max() > memory.numel):
        raise ValueError(f"rectangles lie in elements {offsets.min()} to {ends.max()} of a buffer of {memory.numel}")

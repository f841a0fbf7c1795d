"""Lines of logs of events as people read them, compiled; `hpcrl.inspect.log_lines` has the same in Python.

Without a compiler all lines are left to that: to the same bytes, at a tenth of the speed.
"""

import ctypes
from typing import NamedTuple

import numpy as np

from hpcrl.ops.library import compiled

SHORTEST = 48
"""Bytes of a line that is known here: its time, `mono`, `seq` and the name of an event."""
CLOCK = 13
"""Bytes of a clock and of a line's end."""


_COUNTS = ctypes.c_int64 * 2


class Shown(NamedTuple):
    """`times` in microseconds; `read` bytes of the block are in `lines`, which have no ends."""

    times: np.ndarray
    lines: list[bytes]
    read: int


def shown(block: bytes, at: int, names: bytes, who: bytes, base: int | None, newest: int) -> Shown:
    """The lines of a block from a byte on, up to one that is not known here.

    `names` of events stand between line ends; `who` goes between a line's clock and its words. A line's time is its own
    or, with a base, its `mono` and that, and none is below `newest`, all in microseconds.
    """
    library = compiled()
    if library is None:
        return Shown(np.empty(0, np.int64), [], 0)
    given = np.frombuffer(block, np.uint8)[at:]
    most = len(given) // SHORTEST + 1
    out, times = np.empty(2 * len(given) + most * (CLOCK + len(who)), np.uint8), np.empty(most, np.int64)
    counts = _COUNTS()
    count = library.hpcrl_log_lines(
        ctypes.c_void_p(given.ctypes.data),
        ctypes.c_int64(len(given)),
        names,
        who,
        ctypes.c_int64(len(who)),
        ctypes.c_int64(base is not None),
        ctypes.c_int64(base or 0),
        ctypes.c_int64(newest),
        ctypes.c_void_p(out.ctypes.data),
        ctypes.c_void_p(times.ctypes.data),
        counts,
    )
    read, written = counts
    return Shown(times[:count], out[:written].tobytes().split(b"\n")[:-1], read)

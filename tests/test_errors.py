"""What an error says of what ran out, or broke, whoever raised it."""

import errno
import os

import pytest

from hpcrl.errors import InternalError, KilledForMemoryError, Nature, PeerLostError, UserCodeError, nature_of


class OutOfMemoryError(RuntimeError):
    """As torch has one."""

    __module__ = "torch"


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


NO_ROOM = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
CASES: list[tuple[BaseException, Nature]] = [
    (OutOfMemoryError("tried to allocate 2 GiB"), "GPU memory"),
    (RuntimeError("CUDA error: out of memory"), "GPU memory"),
    (RuntimeError("[enforce fail at alloc_cpu.cpp:125] DefaultCPUAllocator: can't allocate memory"), "host memory"),
    (MemoryError(), "host memory"),
    (KilledForMemoryError("the kernel has killed it"), "host memory"),
    (UserCodeError("reward.function score.py:score failed for a prompt\nMemoryError: \n  File"), "host memory"),
    (caused(InternalError("no room for a spill"), NO_ROOM), "disk"),
    (OSError(errno.EFBIG, "File too large"), "disk"),
    (PeerLostError([0, 1], "all_reduce", 1, 0, RuntimeError("reset")), "communication"),
    (OSError(errno.ENOENT, "No such file"), ""),
    (UserCodeError("ValueError: a MemoryError is not meant"), ""),
]


@pytest.mark.parametrize(("error", "nature"), CASES, ids=lambda it: type(it).__name__)
def test_an_error_says_what_ran_out(error: BaseException, nature: Nature) -> None:
    assert nature_of(error) == nature

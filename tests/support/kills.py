"""Faults within one process: counting points, SIGKILL at one of them in a forked child, a full disk at one of them."""

import errno
import os
import signal
import traceback
from collections.abc import Callable


class Recorder:
    """Notes every point that is passed."""

    def __init__(self) -> None:
        self.points: list[str] = []

    def __call__(self, point: str) -> None:
        self.points.append(point)


class KillAt:
    """SIGKILL to this very process when the `number`-th point (from 0) is passed."""

    def __init__(self, number: int) -> None:
        self._left = number

    def __call__(self, _point: str) -> None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1


class FullAt:
    """No space left, once, when the `number`-th point (from 0) is passed."""

    def __init__(self, number: int) -> None:
        self._left = number

    def __call__(self, point: str) -> None:
        self._left -= 1
        if self._left == -1:
            raise OSError(errno.ENOSPC, "No space left on device", point)


def in_child(action: Callable[[], object]) -> int:
    """Run `action` in a forked process; returns what subprocess calls its return code (-9: killed)."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)

"""TCP connections between processes, cut from outside: both ends live on, and neither hears of the other again."""

import ctypes
import errno
import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import combinations
from pathlib import Path

PIDFD_GETFD = 438
_SOCKET = re.compile(r"socket:\[(\d+)\]")


def cut(pids: Sequence[int]) -> int:
    """Shut every TCP connection that two of these processes have with each other; how many ends that were.

    Raises:
        OSError: a process is gone, or not ours to touch.
    """
    ends = _ends()
    of = {pid: {ends[it]: descriptor for it, descriptor in _sockets(pid) if it in ends} for pid in pids}
    count = 0
    for one, other in combinations(pids, 2):
        for pid, peer in ((one, other), (other, one)):
            for (local, remote), descriptor in of[pid].items():
                if (remote, local) in of[peer]:
                    _shut(pid, descriptor)
                    count += 1
    return count


def _ends() -> dict[int, tuple[str, str]]:
    """Inode of each socket of this machine → its address and its peer's."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {int(row[9]): (row[1], row[2]) for row in rows}


def _sockets(pid: int) -> Iterator[tuple[int, int]]:
    """Inodes and descriptors of a process's sockets."""
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            if found := _SOCKET.fullmatch(os.readlink(f"/proc/{pid}/fd/{name}")):
                yield int(found[1]), int(name)


def _shut(pid: int, descriptor: int) -> None:
    with _process(pid) as process:
        mine = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, process, descriptor, 0)
    if mine < 0:
        error = ctypes.get_errno()
        if error == errno.EBADF:  # its process has closed it by now, since the other end was shut
            return
        raise OSError(error, os.strerror(error))
    with socket.socket(fileno=mine) as it, suppress(OSError):
        it.shutdown(socket.SHUT_RDWR)


@contextmanager
def _process(pid: int) -> Iterator[int]:
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)

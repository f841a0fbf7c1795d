"""Looks at what a node's workers use, every few seconds, and writes it down. Decides nothing, and can end nothing.

A file of the kernel's that is missing, a driver without an answer or a full disk leaves figures out. The thread waits
alone where a file system hangs.
"""

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hpcrl.agent.nvml import read_use
from hpcrl.durable.resources import GpuUse, NodeUse, WorkerUse, encode
from hpcrl.processes import CGROUPS, children_of, memory_groups

EVERY_S = 10.0
LEAVE_S = 1.0
LINES = 2000
"""After so many lines each stands for twice as many looks as before, so that a run of months leaves a few MB."""
PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Watch:
    """A thread from `start` to `close`. `workers` says which processes there are: rank → process id."""

    def __init__(
        self, path: Path, root: Path, workers: Callable[[], Mapping[int, int]], devices: Sequence[str] = ()
    ) -> None:
        """`root` lies on the file system that is watched; `devices` are UUIDs."""
        self._first = self._into = path
        self._root = root
        self._workers = workers
        self._devices = tuple(devices)
        self._told: queue.SimpleQueue[bool | Path] = queue.SimpleQueue()
        """Whether to look at once, or no more; or into which file from now on."""
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Look now: something has changed."""
        self._told.put(True)

    def write_into(self, path: Path) -> None:
        """Write what is seen from now on into this file: that of an attempt that follows another under one master."""
        if path != self._into:
            self._into = path
            self._told.put(path)

    def close(self) -> None:
        """Look no more. Does not wait for a thread that hangs."""
        self._told.put(False)
        self._thread.join(LEAVE_S)

    def _run(self) -> None:
        into: bool | Path = self._first
        with suppress(OSError):
            while isinstance(into, Path):
                into = self._look_into(into)

    def _look_into(self, path: Path) -> bool | Path:
        """Until it is told of another file, or to look no more."""
        path.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            lines = Lines(descriptor)
            while (told := self._waited()) is True:
                lines.add(look(self._root, self._workers(), self._devices, lines.fsync_s))
            return told
        finally:
            os.close(descriptor)

    def _waited(self) -> bool | Path:
        """Wait for the next look, or for what it is told."""
        try:
            return self._told.get(timeout=EVERY_S)
        except queue.Empty:
            return True


class Lines:
    """Writes looks as lines, ever fewer of them."""

    def __init__(self, descriptor: int) -> None:
        self.fsync_s = 0.0
        """How long the last one took to reach the disk."""
        self._descriptor = descriptor
        self._written = 0
        self._each = 1
        self._looks = 0
        self._open: NodeUse | None = None

    def add(self, use: NodeUse) -> None:
        """A look; with those before it a line, once there are enough of them."""
        self._open = use if self._open is None else self._open.worse(use)
        self._looks += 1
        if self._looks < self._each:
            return
        line, self._open, self._looks = encode(self._open), None, 0
        self._written += 1
        if self._written % LINES == 0:
            self._each *= 2
        begun = time.monotonic()
        with suppress(OSError):  # a full disk
            os.write(self._descriptor, line)
            os.fsync(self._descriptor)
            self.fsync_s = round(time.monotonic() - begun, 6)


def look(root: Path, workers: Mapping[int, int], devices: Sequence[str], fsync_s: float, proc: Path = PROC) -> NodeUse:
    """What is in use now. `workers`: rank → process id."""
    used, limit = group_memory()
    return NodeUse(
        time=round(time.time(), 3),
        host=socket.gethostname(),
        workers=tuple(of_worker(rank, pid, proc) for rank, pid in sorted(workers.items())),
        gpus=tuple(GpuUse(*of_gpu) for of_gpu in read_use(devices)) if devices else (),
        used=used,
        limit=limit,
        free=free_bytes(root),
        fsync_s=fsync_s,
    )


def of_worker(rank: int, pid: int, proc: Path = PROC) -> WorkerUse:
    """Of a process and all below it; of those that have gone nothing."""
    rss = ticks = 0
    below = [pid]
    while below:
        process = below.pop()
        below += children_of(process)
        with suppress(OSError, ValueError, IndexError):
            fields = (proc / str(process) / "stat").read_text(errors="replace").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
            rss += int(fields[21]) * PAGE
    return WorkerUse(rank, pid, rss, round(ticks / TICKS_PER_S, 2))


def free_bytes(root: Path) -> int:
    """That this user may still write on the file system of a folder; -1 where it does not say."""
    try:
        found = os.statvfs(root)
    except OSError:
        return -1
    return found.f_bavail * found.f_frsize


def group_memory(cgroups: Path = PROC / "self/cgroup", root: Path = CGROUPS) -> tuple[int, int]:
    """Bytes that this process's job, or its own control group, has in use and may have; 0 for what is not said."""
    try:
        folders = list(memory_groups(cgroups.read_text(), root, job_only=False))
    except OSError:
        return 0, 0
    for folder in folders:
        for used, limit, dropped in (
            ("memory.current", "memory.max", "inactive_file"),
            ("memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file"),
        ):
            if (in_use := _number(folder / used)) is not None:
                inactive = _statistic(folder / "memory.stat", dropped)
                return max(0, in_use - inactive), _bounded(_number(folder / limit))
    return 0, 0


def _number(path: Path) -> int | None:
    """None where there is no such file, or it says `max`."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _bounded(limit: int | None) -> int:
    """Version 1 says a number beyond all memory where there is no limit."""
    return 0 if limit is None or limit >= 1 << 60 else limit


def _statistic(path: Path, name: str) -> int:
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0

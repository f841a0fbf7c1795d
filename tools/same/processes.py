"""The processes of a run, found from outside.

A run is submitted with a variable in its environment, which every process that it starts inherits, whatever it is
called and whoever its parent is. Which of them is what follows from what it writes: the master writes the journal, and
a worker's output goes to a file with the worker's public name, the one that `hpcrl logs --worker` takes.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

MARK = "HPCRL_SAME"
POLL_S = 0.02
FOUND_S = 10.0
GONE_S = 10.0

Found = TypeVar("Found")


class NotInTimeError(Exception):
    """What was waited for did not come."""


def marked(folder: Path) -> list[int]:
    """The process ids of all that were started with this folder as their mark, or with one below it."""
    mark = f"{MARK}={folder}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "environ").read_bytes().split(b"\0")
            if any(word == mark or word.startswith(mark + b"/") for word in words):
                found.append(int(process.name))
    return found


def end_marked(folder: Path) -> None:
    """SIGKILL all that bear the mark, and what they start meanwhile, until none is left."""
    deadline = time.monotonic() + GONE_S
    while (left := marked(folder)) and time.monotonic() < deadline:
        for pid in left:
            kill(pid)
        time.sleep(POLL_S)


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def find_master(folder: Path) -> int:
    """Who holds the journal of a run in the folder open. Raises NotInTimeError."""
    return wait_for(lambda: next(filter(_holds_journal, marked(folder)), 0), "a process that writes a journal")


def find_worker(folder: Path) -> int:
    """The worker of the last rank. Raises NotInTimeError."""
    return wait_for(lambda: max(_workers(folder), default=("", 0))[1], "a process that writes a worker's output")


def _workers(folder: Path) -> list[tuple[str, int]]:
    """Names of output files and who writes to them; children, as a reward function's process, inherit the file."""
    outputs = {pid: Path(name).name for pid in marked(folder) if (name := _open_file(pid, "1"))}
    workers = {pid: name for pid, name in outputs.items() if name.startswith("worker-")}
    return [(name, pid) for pid, name in workers.items() if workers.get(_parent(pid)) != name]


def _holds_journal(pid: int) -> bool:
    return any(Path(name).name == "journal.jsonl" for name in _open_files(pid))


def _open_files(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            yield _open_file(pid, descriptor)


def _open_file(pid: int, descriptor: str) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/{descriptor}")
    return ""


def _parent(pid: int) -> int:
    with suppress(OSError):
        # The name in brackets may hold anything; the state and the parent follow it.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def wait_for(look: Callable[[], Found], what: str, seconds: float = FOUND_S) -> Found:
    """What `look` gives as soon as it is true. Raises NotInTimeError."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(POLL_S)
    raise NotInTimeError(f"{what} did not come within {seconds:g} s")

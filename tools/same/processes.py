"""Finds the processes of a run from outside.

A run is submitted with a mark in its environment, which all of its processes inherit whatever they are called and
whoever their parent is. What a process writes tells its part: the master holds the journal open, and a worker's output
goes to a file with the worker's public name, the one `hpcrl logs --worker` takes. The path to the tree's code travels
in the same environment, so a process with the mark also runs the right tree.
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
    """Something did not happen before its deadline."""


def marked(folder: Path) -> list[int]:
    """Ids of the processes whose mark is this folder or one below it."""
    mark = f"{MARK}={folder}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "environ").read_bytes().split(b"\0")
            if any(word == mark or word.startswith(mark + b"/") for word in words):
                found.append(int(process.name))
    return found


def end_marked(folder: Path) -> None:
    """SIGKILL every process with the mark, and whatever they start meanwhile, until none is left."""
    deadline = time.monotonic() + GONE_S
    while (left := marked(folder)) and time.monotonic() < deadline:
        for pid in left:
            kill(pid)
        time.sleep(POLL_S)


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def find_master(folder: Path) -> int:
    """The process that holds the run's journal open. Raises NotInTimeError."""
    return wait_for(lambda: next(filter(_holds_journal, marked(folder)), 0), "a process that writes a journal")


def find_worker(folder: Path) -> int:
    """The worker with the highest rank. Raises NotInTimeError."""
    return wait_for(lambda: max(_workers(folder), default=("", 0))[1], "a process that writes a worker's output")


def _workers(folder: Path) -> list[tuple[str, int]]:
    """Output file and process of each worker; children such as reward processes inherit the file and do not count."""
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
        # The command in parentheses may contain anything; state and parent follow it.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def wait_for(look: Callable[[], Found], what: str, seconds: float = FOUND_S) -> Found:
    """The result of `look` once it is true. Raises NotInTimeError."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(POLL_S)
    raise NotInTimeError(f"{what} was not found within {seconds:g} s")

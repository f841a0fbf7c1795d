"""Stacks of processes that seem to hang: how they write them down, how they are asked to, and how they are read.

A process writes them inside a signal handler of `faulthandler`, which needs neither the interpreter's lock nor memory:
also one that waits in a library's code does.
"""

import faulthandler
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from hpcrl.processes import children_of

ASK = signal.SIGRTMIN + 1
"""The signal. It would end a process that has not said that it answers."""
FILE = "HPCRL_STACKS"
"""The variable that tells processes that a worker starts where its file is."""
ANSWER_S = 5.0
"""How long a process is waited for, which may be stopped, wait for a disk, or get no CPU."""
TAIL_BYTES = 1 << 20
OWN = Path(__file__).parent

_HEAD = re.compile(r"^═ (\S+) process (\d+) of (\S+): (.*)$")
_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_FRAME = re.compile(r'^ +File "([^"]*)", line (\d+)(?:,? in (.*))?$')
"""As faulthandler and tracebacks have it."""
_CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Frame:
    """One call in a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}, in {self.function}"

    @property
    def is_users(self) -> bool:
        """Whether its file is neither hpcrl's nor Python's nor an installed package's."""
        if self.file.startswith("<") or "/site-packages/" in self.file or "/dist-packages/" in self.file:
            return False
        if re.search(r"/lib(64)?/python3", self.file):
            return False
        _, ours, within = self.file.rpartition("/hpcrl/")
        return not (ours and (OWN / within).is_file())


@dataclass
class Shown:
    """What one process wrote when it was asked. `frames` are those of the thread that executes, innermost first."""

    time: str
    process: int
    who: str
    why: str
    frames: list[Frame] = field(default_factory=list)


# ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def show_when_asked(path: Path | None) -> None:
    """Have this process, and those that it forks, append the stacks of all threads to this file whenever it is asked
    to. None: there is no such file, and nothing is done. Where the file cannot be made, there will be no stacks."""
    if path is None:
        return
    with suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        faulthandler.register(ASK, file=file, all_threads=True, chain=False)
        os.environ[FILE] = str(path)


def file_of_parent() -> Path | None:
    """Where the process that has started this one writes its stacks."""
    return Path(os.environ[FILE]) if FILE in os.environ else None


def ask(pid: int, who: str, path: Path, why: str) -> list[int]:
    """Have a process, and all below it that answer, write their stacks to the file that they have; returns which."""
    asked = [it for it in _tree(pid) if _answers(it)]
    for it in asked:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        with suppress(OSError):
            _append(path, f"═ {now} process {it} of {who}: {why}\n")
            size = path.stat().st_size
            os.kill(it, ASK)
            _await_answer(path, size)
    return asked


def _await_answer(path: Path, before: int) -> None:
    """Until the file has grown and grows no more."""
    size, until = before, time.monotonic() + ANSWER_S
    while time.monotonic() < until:
        time.sleep(0.02)
        grown = path.stat().st_size
        if before < grown == size:
            return
        size = grown


def _append(path: Path, line: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for child in children_of(pid):
        yield from _tree(child)


def _answers(pid: int) -> bool:
    """Whether it handles the signal."""
    try:
        caught = _CAUGHT.search(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return False
    return caught is not None and bool(int(caught[1], 16) >> (ASK - 1) & 1)


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def newest(path: Path) -> list[Shown]:
    """What the processes of a worker wrote when they were asked last, the worker first; none where there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    found = list(_read(lines))
    return [shown for shown in found if shown.why == found[-1].why]


def where(shown: list[Shown]) -> Frame | None:
    """The frame that says most of where a worker is: the innermost of the user's, of the process that it has started
    last before others; else the innermost of the worker itself that is hpcrl's, else any."""
    for process in reversed(shown):
        if (frame := next((frame for frame in process.frames if frame.is_users), None)) is not None:
            return frame
    frames = shown[0].frames if shown else []
    own = (frame for frame in frames if "/hpcrl/" in frame.file)
    return next(own, frames[0] if frames else None)


def innermost(stack: str) -> Frame | None:
    """The innermost frame of the user's in a traceback's lines, or of any where there is none."""
    frames = [frame for line in stack.splitlines() if (frame := frame_of(line)) is not None]
    own = [frame for frame in frames if frame.is_users]
    return own[-1] if own else next(reversed(frames), None)


def frame_of(line: str) -> Frame | None:
    """What a line of stacks, or of a traceback, tells of."""
    found = _FRAME.match(line)
    return None if found is None else Frame(found[1], int(found[2]), found[3] or "")


def _read(lines: list[str]) -> Iterator[Shown]:
    shown, executes = None, False
    for line in lines:
        if head := _HEAD.match(line):
            if shown is not None:
                yield shown
            shown, executes = Shown(head[1], int(head[2]), head[3], head[4]), False
        elif thread := _THREAD.match(line):
            executes = thread[1] == "Current thread"
        elif shown is not None and executes and (frame := frame_of(line)):
            shown.frames.append(frame)
    if shown is not None:
        yield shown

"""The process that mirrors a run beside its master, which it can neither slow nor end.

`python -m hpcrl.launch.mirroring RUN PROGRAM MASTER`, started by the master's job: it has the lowest priority, ends
with the master whatever it does, and once its standard input is closed after one last look.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.mirrors.mirror import LOOK_S, Told, mirroring
from hpcrl.processes import die_with_parent

LAST_LOOK_S = 10.0
"""How long the master's job waits for it. What is missing then, `hpcrl mirror` adds."""


@contextmanager
def mirrored(run: RunDirectory, kind: str | None) -> Iterator[None]:
    """Have the run mirrored meanwhile, if it is to be. Whatever goes wrong with that stands in the mirror's log."""
    process = None
    if kind is not None:
        with suppress(OSError):
            process = _start(run, kind)
    try:
        yield
    finally:
        if process is not None:
            _end(process)


def _start(run: RunDirectory, kind: str) -> "subprocess.Popen[bytes]":
    log = run.mirror(kind).with_suffix(".log")
    log.parent.mkdir(mode=0o700, exist_ok=True)
    command = [sys.executable, "-m", "hpcrl.launch.mirroring", str(run.root), kind, str(os.getpid())]
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab") as said:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said)


def _end(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(LAST_LOOK_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main(run_dir: str, kind: str, master: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(master)
    os.nice(19)
    run = RunDirectory(Path(run_dir))
    with mirroring(kind, run, run.mirror(kind)) as mirror:
        told, over = Told(run, mirror), False
        while not over:
            over = bool(select.select([sys.stdin], [], [], LOOK_S)[0])
            told.look(over)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

"""A run's processes on this machine without submitit: master and agents from a warm server, with faults in them."""

import contextlib
import os
import pickle
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from support import forkserver

from hpcrl import processes
from hpcrl.agent.devices import MASK
from hpcrl.durable.rundir import RunDirectory
from hpcrl.launch.entry import main as entry
from hpcrl.master.allocation import Allocation
from hpcrl.recipes import toy

RUNNING = 999
"""In the place of an exit code: the process has not ended."""


def no_fault(_point: str) -> None:
    """Nothing happens."""


def _job(
    process: str,
    run_dir: str,
    submission: str,
    node: int,
    out: str,
    fault: Callable[[str], None],
    allocation: Allocation | None,
    environment: dict[str, str],
) -> None:
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(environment)
    descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os._exit(entry(process, run_dir, submission, node, 1, fault, allocation=allocation))


@dataclass
class Jobs:
    """The jobs of one submission: name → process."""

    processes: dict[str, ForkServerProcess]

    def pid(self, name: str) -> int:
        pid = self.processes[name].pid
        assert pid is not None
        return pid

    def wait(self, timeout_s: float) -> dict[str, int]:
        """Exit codes (negative: killed by that signal); what does not end in time is killed and reported as 999."""
        deadline = time.monotonic() + timeout_s
        codes = {}
        for name, process in self.processes.items():
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:
                os.kill(self.pid(name), signal.SIGCONT)
                process.kill()
                process.join()
                codes[name] = RUNNING
            else:
                codes[name] = process.exitcode
        return codes

    def wait_for(self, name: str, timeout_s: float) -> int:
        """Exit code of one job; 999 if it does not end in time."""
        process = self.processes[name]
        process.join(timeout_s)
        return RUNNING if process.exitcode is None else process.exitcode

    def write_pids(self, path: Path) -> None:
        """Atomically: strikes read it."""
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(f"{name} {self.pid(name)}\n" for name in self.processes))
        temporary.rename(path)

    def kill_all(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        for process in self.processes.values():
            process.join()


def start(
    run_dir: Path,
    submission: str,
    fault: Callable[[str], None] = no_fault,
    nodes: int = 1,
    allocation: Allocation | None = None,
) -> Jobs:
    """Start the master and the agents of a submission, in the environment that this process has now."""
    assert b"tests." not in pickle.dumps(fault), "a fault has to be in tests/support: processes import no test"
    names = ("master", *(f"agent-{node}" for node in range(nodes)))
    return Jobs({name: start_job(run_dir, submission, name, fault, allocation) for name in names})


def start_job(
    run_dir: Path,
    submission: str,
    name: str,
    fault: Callable[[str], None] = no_fault,
    allocation: Allocation | None = None,
) -> ForkServerProcess:
    """One of a submission's jobs: `master` or `agent-N`."""
    process, _, node = name.partition("-")
    out = run_dir.parent / f"{run_dir.name}.{submission}.{name}.log"
    arguments = (process, str(run_dir), submission, int(node or 0), str(out), fault, allocation, dict(os.environ))
    return forkserver.start(_job, *arguments, kind=_kind_of(RunDirectory(run_dir).run_json))


def _kind_of(run_json: Path) -> forkserver.Kind:
    """What the run's workers need: toys no torch. A record that is damaged or gone need not tell."""
    text = run_json.read_bytes() if run_json.exists() else b""
    if toy.ALGORITHM.host.encode() in text:
        return "toy"
    theirs = re.search(rb'"backend": ?"[^"]*megatron', text) is not None
    return "guests" if theirs and os.environ.get(MASK) == "" else "torch"


def alive_of(run_dir: Path) -> list[str]:
    """Command lines or names of processes that still have a file of the run open."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if any(path.startswith(str(run_dir)) for path in _open_files(pid)) and is_alive(int(pid)):
            with contextlib.suppress(OSError):
                found.append(f"{pid} {Path(f'/proc/{pid}/comm').read_text().strip()}")
    return found


def wait_until_gone(run_dir: Path, limit_s: float = 30.0) -> None:
    """Workers die with their agent, but a moment after it: until then they may still publish what they were writing."""
    deadline = time.monotonic() + limit_s
    while left := alive_of(run_dir):
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def _open_files(pid: str) -> Iterator[str]:
    """A file that is closed while we look does not hide the others."""
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{descriptor}")


def children_of(pid: int) -> list[int]:
    """Process ids of a process's living children; none where it is gone."""
    return [child for child in processes.children_of(pid) if is_alive(child)]


def command_of(pid: int) -> str:
    """A process's command line; nothing where it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and is not reaped yet does not."""
    proc = Path(f"/proc/{pid}")
    with contextlib.suppress(OSError):
        return proc.exists() and not _zombie(proc)
    return False


def _zombie(proc: Path) -> bool:
    return (proc / "stat").read_text().rpartition(")")[2].split()[0] == "Z"

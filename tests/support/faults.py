"""Faults that tests put into a run: a signal or a full disk at the n-th passage of a named point."""

import contextlib
import errno
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

from support import strikes
from support.cluster import children_of, command_of

from hpcrl import processes
from hpcrl.agent import agent, zygote
from hpcrl.agent.servers import PREFIX
from hpcrl.durable.records import Command
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import UserCodeError
from hpcrl.master.control import POLL_S
from hpcrl.placement.servers import LOG, PID
from hpcrl.processes import SHARED
from hpcrl.workers import mailbox

REWARD, TRACKER = "hpcrl.rewards.process", "multiprocessing.resource_tracker"
SIGNALS = {"KILL": signal.SIGKILL, "TERM": signal.SIGTERM, "STOP": signal.SIGSTOP}
PIDS_WAIT_S = 30.0
SLEEP_S = 120.0


@dataclass
class Strike:
    """Strikes once in the life of a run: when a process in `role` passes `point` for the `nth` time.

    A process says who it is by passing the point `as NAME`. `what` is KILL, TERM, STOP, FULL (the operation finds no
    room), RAISE (the user's code raises), EXIT (it calls sys.exit), SLEEP (the thread that passes does nothing for a
    while), or anything else, which only leaves the mark. `target` is "self", "all" (jobs), the name of a job whose
    process id stands in `folder/pids`, `worker-N`, `reward-N`: the process of worker N in which the user's reward
    function runs, `server`: what makes responses beside a worker, or `server's child`: one in which that computes. With
    `always` it strikes at every passage from the `nth` on. Who was hit stands in the mark.
    """

    folder: Path
    name: str
    role: str
    point: str
    what: str
    target: str = "self"
    nth: int = 1
    always: bool = False
    me: str = ""
    passed: int = 0

    def __call__(self, point: str) -> None:
        if point.startswith("as "):
            self.me, self.passed = point.removeprefix("as "), 0
            if self.me.startswith("worker-"):
                _write(self.folder / f"{self.me}.pid", str(os.getpid()))
            return
        if not fnmatch(self.me, self.role) or not fnmatch(point, self.point):
            return
        self.passed += 1
        if self.passed >= self.nth and (self._first() or self.always):
            self._strike()

    @property
    def marker(self) -> Path:
        return self.folder / f"{self.name}.struck"

    def _first(self) -> bool:
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        return True

    def _strike(self) -> None:
        if self.what == "FULL":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.what == "RAISE":
            raise UserCodeError("the reward function divided by zero")
        if self.what == "EXIT":
            sys.exit("the user's code wants to end the process")
        if self.what == "SLEEP":
            time.sleep(SLEEP_S)
        if self.what not in SIGNALS:
            return
        pids = self._pids()
        _write(self.marker, " ".join(map(str, pids)))
        strikes.count(self.what)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, SIGNALS[self.what])

    def _pids(self) -> list[int]:
        """Whom to hit; this process last."""
        if self.target == "self":
            return [os.getpid()]
        if self.target.startswith("worker-"):
            return [self._worker(self.target)]
        if self.target.startswith("reward-"):
            children = children_of(self._worker(f"worker-{self.target.removeprefix('reward-')}"))
            return [pid for pid in children if REWARD in command_of(pid)]
        if self.target.startswith("server"):
            server = self._server()
            children = [pid for pid in children_of(server) if TRACKER not in command_of(pid)]
            return [server] if self.target == "server" else children[:1]
        deadline = time.monotonic() + PIDS_WAIT_S
        while not (self.folder / "pids").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        jobs = dict(line.split() for line in (self.folder / "pids").read_text().splitlines())
        if self.target != "all":
            return [int(jobs[self.target])]
        return [*(int(pid) for pid in jobs.values() if int(pid) != os.getpid()), os.getpid()]

    def _worker(self, name: str) -> int:
        """The newest process that is this worker."""
        return int((self.folder / f"{name}.pid").read_text())

    def _server(self) -> int:
        """The newest one of this folder's run."""
        found = []
        for path in SHARED.glob(f"{PREFIX}*/{LOG}"):
            with contextlib.suppress(OSError):  # another run's that has just ended
                if path.read_text().startswith(f"{self.folder}/"):
                    found.append((path.stat().st_mtime, path))
        return int(max(found)[1].with_name(PID).read_text())

    @property
    def hit(self) -> list[int]:
        """Process ids of those that were sent a signal; none while it has not struck."""
        return [int(pid) for pid in self.marker.read_text().split()] if self.marker.exists() else []


def _write(path: Path, text: str) -> None:
    """Whole, whoever reads it meanwhile."""
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(text)
    temporary.rename(path)


@dataclass
class Strikes:
    """Several faults in one run."""

    strikes: tuple[Callable[[str], None], ...]

    def __call__(self, point: str) -> None:
        for strike in self.strikes:
            strike(point)


@dataclass
class InWorkers:
    """Has every worker do something to itself, told its rank, before it makes its host."""

    change: Callable[[int], None]
    rank: int = -1

    def __call__(self, point: str) -> None:
        if point.startswith("as worker-"):
            self.rank = int(point.removeprefix("as worker-"))
        elif point == "worker.start":
            self.change(self.rank)


@dataclass
class InLoad:
    """Has workers pass a point as they begin to load a role: `worker.loading`. Whoever loads a later one has others
    loaded already."""

    strike: Callable[[str], None]

    def __call__(self, point: str) -> None:
        self.strike(point)
        if point == "worker.start":
            mailbox.Mailbox.starting = partialmethod(_told_of, mailbox.Mailbox.starting, self.strike)  # type: ignore[assignment]


def _told_of(
    self: mailbox.Mailbox, starting: Callable[..., None], strike: Callable[[str], None], what: str, *details: Any
) -> None:
    starting(self, what, *details)
    if what.startswith("loading ") and "," not in what:
        strike("worker.loading")


@dataclass
class Looks:
    """In agents and workers: writes down, in `folder`, when they look for what they and their children have done."""

    folder: Path

    def __call__(self, point: str) -> None:
        if point == "agent.start":
            zygote.work_done = partial(self._look, "agent", processes.work_done)
        elif point == "worker.start":
            mailbox.work_done = partial(self._look, "worker", processes.work_done)

    def _look(self, who: str, look: Callable[[int], int], pid: int) -> int:
        with open(self.folder / f"{who}.looks", "a") as file:
            file.write(f"{time.time()}\n")
        return look(pid)


@dataclass
class EventsLost:
    """The master's events find no room, from an attempt's first on."""

    root: Path

    def __call__(self, point: str) -> None:
        if point == "claim.made":
            run = RunDirectory(self.root)
            run.events(run.numbers()[-1]).symlink_to("/dev/full")


class After(Strike):
    """Counts passages only once another strike has come."""

    def __init__(self, *arguments: object, first: Strike) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.first = first

    def __call__(self, point: str) -> None:
        if point.startswith("as ") or self.first.marker.exists():
            super().__call__(point)


@dataclass
class OnceThere(Strike):
    """Waits, where it strikes, until a file is there whose path below `tree` matches `pattern`."""

    tree: Path = Path()
    pattern: str = ""

    def _strike(self) -> None:
        deadline = time.monotonic() + SLEEP_S
        while not any(self.tree.glob(self.pattern)) and time.monotonic() < deadline:
            time.sleep(0.005)
        super()._strike()


class Ordering:
    """Gives an order to the run where a strike would strike; the master that is struck hears it there."""

    def __init__(self, run: RunDirectory, strike: Strike, order: Command) -> None:
        self.run = RunDirectory(run.root)
        self.strike = strike
        self.order = order

    def __call__(self, point: str) -> None:
        if point.startswith("control"):
            return
        before = self.strike.marker.exists()
        self.strike.what = "NOTHING"
        self.strike(point)
        if self.strike.marker.exists() and not before:
            self.run.publish_command(self.order)
            time.sleep(POLL_S)  # by then it looks again


@dataclass
class KillOnceWritten:
    """Kills the process `role` at a point of its own as soon as some journal has this line; once in a run's life."""

    run: Path
    role: str
    point: str
    line: str
    me: str = ""

    def __call__(self, point: str) -> None:
        if point.startswith("as "):
            self.me = point.removeprefix("as ")
        elif (self.me, point) == (self.role, self.point) and self._is_written() and not self.marker.exists():
            self.marker.touch()
            strikes.count("KILL")
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def marker(self) -> Path:
        return self.run.parent / f"{self.role}.killed"

    def _is_written(self) -> bool:
        return any(self.line in path.read_text() for path in self.run.glob("attempts/*/journal.jsonl"))


@dataclass
class Slow:
    """A worker that takes its time before each model that it loads."""

    role: str
    seconds: float
    me: str = ""

    def __call__(self, point: str) -> None:
        if point.startswith("as "):
            self.me = point.removeprefix("as ")
        elif point == "build.begin" and self.me == self.role:
            time.sleep(self.seconds)


@dataclass
class WaitsForAll:
    """An agent that is told to end kills nobody who does not leave by himself, but waits."""

    def __call__(self, point: str) -> None:
        if point.startswith("as agent-"):
            agent.LEAVE_S = float("inf")


@dataclass
class Dawdles:
    """Every worker takes its time before each call."""

    seed: int
    draw: random.Random | None = None

    def __call__(self, point: str) -> None:
        if point.startswith("as "):
            self.draw = random.Random(f"{self.seed} {point}")
        elif point == "worker.call" and self.draw is not None:
            time.sleep(self.draw.choice([0.0, 0.05, 0.2]))

"""The housekeeper of a node does chores for the master behind the work: archives, merged spills, parts that may go.

It is a process of its own below the zygote, of one attempt, at a low priority: what it takes delays no beat, and what
ends it ends nothing else. `Housekeeper` is the agent's end, which never waits; `keep_house` is the process. Neither
knows the journal, or what chores are for.
"""

import contextlib
import os
import select
import socket
import threading
import time
import traceback
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import msgspec

from hpcrl.agent.archive import Archive
from hpcrl.agent.zygote import Exit, Zygote
from hpcrl.data.datasets import open_datasets
from hpcrl.durable.archives import write_archive
from hpcrl.durable.files import DamagedFileError
from hpcrl.durable.indexes import RunIndexes
from hpcrl.durable.retention import compact_step, remove_parts
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.spills import read_parts, read_spill
from hpcrl.errors import ExitCode, HpcrlError, StoppedError, nature_of
from hpcrl.foreign import plain
from hpcrl.placement.plan import read_plan
from hpcrl.processes import kill_group
from hpcrl.recipes.algorithm import algorithm_of, experiment_from
from hpcrl.wire.chores import Chore, ChoreDone, ChoreFailed, ChoreReport, KeepStep
from hpcrl.wire.zygote import HousekeeperArgs

NICE = 10
"""Below workers, which compute meanwhile, and not so far that it stands still beside them."""
LEAST_PATIENCE_S = 30.0
LOST_TIMES = 10
"""It has the CPU last: for so long, or so many times as long as any other process may be silent, it is not taken to
hang."""
ALIVE = b"."
LONGEST_REPORT = 1 << 18
LONGEST_ERROR = 1 << 16
"""Characters of an error that are told."""


def patience_s(lost_after_s: float) -> float:
    """How long a housekeeper may be silent where others are lost after so long."""
    return max(LEAST_PATIENCE_S, LOST_TIMES * lost_after_s)


class Housekeeper:
    """Of one agent; its process begins with an attempt's first chore. It does one chore at a time, and is killed once
    it has been silent for `patience_s`."""

    def __init__(self, zygote: Zygote, run: RunDirectory, node: int, heartbeat_s: float, patience_s: float) -> None:
        self._zygote = zygote
        self._run = run
        self._node = node
        self._heartbeat_s = heartbeat_s
        self._patience_s = patience_s
        self._epoll = select.epoll()
        self._channel: socket.socket | None = None
        self._attempt: int | None = None
        self._chore: Chore | None = None
        self._heard = 0.0

    def fileno(self) -> int:
        """Readable once the process says something, whichever process that is."""
        return self._epoll.fileno()

    def order(self, chore: Chore) -> None:
        """Have a chore done; `reports` tell what becomes of it."""
        if chore.attempt != self._attempt or self._channel is None:
            self.dismiss()
            self._channel = self._fork(chore.attempt)
        self._attempt, self._chore, self._heard = chore.attempt, chore, time.monotonic()
        content = os.memfd_create("chore")
        try:
            with open(content, "wb", closefd=False) as file:
                file.write(msgspec.msgpack.encode(chore))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its end is told by the zygote
                socket.send_fds(self._channel, [ALIVE], [content])
        finally:
            os.close(content)

    def reports(self) -> list[ChoreReport]:
        """What became of chores since the last call. A process that gives no sign of life is killed."""
        found: list[ChoreReport] = []
        while self._channel is not None:
            try:
                frame = self._channel.recv(LONGEST_REPORT)
            except BlockingIOError:
                break
            except ConnectionResetError:
                frame = b""
            if not frame:
                self._hang_up()
                break
            self._heard = time.monotonic()
            if frame != ALIVE:
                self._chore = None
                found.append(msgspec.msgpack.decode(frame, type=ChoreReport))
        if self._chore is not None:
            self._kill_if_silent()
        return found

    def ended(self, exited: Exit) -> ChoreFailed | None:
        """Its process is gone; what became of its chore."""
        chore = self._chore
        if chore is None or exited.worker.attempt != chore.attempt:
            return None
        self._chore = None
        self._hang_up()
        how = f"its housekeeper ended: {exited.ended.how}"
        return ChoreFailed(chore.attempt, chore.step, plain(how), int(ExitCode.REQUEUE), elsewhere=True)

    def dismiss(self) -> None:
        """Nobody waits for a chore any more: its process ends after it, if it is not killed before."""
        self._chore = self._attempt = None
        self._hang_up()

    def close(self) -> None:
        self.dismiss()
        self._epoll.close()

    def _fork(self, attempt: int) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            args = HousekeeperArgs(str(self._run.root), attempt, self._node, self._heartbeat_s)
            self._zygote.fork_housekeeper(args, theirs)
        self._epoll.register(ours, select.EPOLLIN)
        return ours

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._epoll.unregister(self._channel)
            self._channel.close()
            self._channel = None

    def _kill_if_silent(self) -> None:
        """One that is not forked yet waits for what its parent imports."""
        own = [pid for pid, it in self._zygote.alive.items() if it.rank is None and it.attempt == self._attempt]
        if not own:
            self._heard = time.monotonic()
        elif time.monotonic() - self._heard > self._patience_s:
            kill_group(own[-1])


# ── the process ───────────────────────────────────────────────────────────────────────────────────────────────────────
def keep_house(args: HousekeeperArgs, channel: socket.socket, fault: Callable[[str], None]) -> int:
    """Do chores until the agent hangs up."""
    os.nice(NICE)
    fault(f"as housekeeper-{args.node}")
    threading.Thread(target=_beat, args=(channel, args.heartbeat_s), name="beat", daemon=True).start()
    work = Housework(RunDirectory(Path(args.run_dir), fault), args.attempt)
    while (chore := _next_chore(channel)) is not None:
        fault("chore.begin")
        report = work.do(chore)
        fault("chore.done")
        channel.send(msgspec.msgpack.encode(report))
    return 0


def _beat(channel: socket.socket, every_s: float) -> None:
    with contextlib.suppress(OSError):
        while True:
            channel.send(ALIVE)
            time.sleep(every_s)


def _next_chore(channel: socket.socket) -> Chore | None:
    frame, contents, _, _ = socket.recv_fds(channel, len(ALIVE), 1)
    if not frame:
        return None
    with open(contents[0], "rb") as file:
        file.seek(0)
        return msgspec.msgpack.decode(file.read(), type=Chore)


class Housework:
    """The chores of one attempt."""

    def __init__(self, run: RunDirectory, attempt: int) -> None:
        self._run = run
        self._attempt = attempt

    def do(self, chore: Chore) -> ChoreReport:
        """A chore, and what became of it."""
        at = chore.attempt, chore.step
        try:
            return self._keep(chore) if isinstance(chore, KeepStep) else self._remove_parts(chore.step)
        except DamagedFileError as error:
            return ChoreFailed(*at, plain(str(error)), int(error.exit_code), error.damage)
        except HpcrlError as error:
            return ChoreFailed(*at, plain(str(error)), int(error.exit_code), nature=nature_of(error))
        except OSError as error:
            said = plain(f"{type(error).__name__}: {error}")
            return ChoreFailed(*at, said, int(ExitCode.INTERNAL), elsewhere=True, nature=nature_of(error))
        except Exception as error:
            told = "".join(traceback.format_exception(error))[-LONGEST_ERROR:]
            return ChoreFailed(*at, plain(told), int(ExitCode.INTERNAL))

    @cached_property
    def _archive(self) -> Archive:
        plan = read_plan(self._run, self._attempt)
        experiment = experiment_from(plan.experiment)
        rows, indexes = algorithm_of(experiment).rows, RunIndexes(self._run, plan.inputs, makes=False)
        return Archive(experiment, open_datasets(experiment, rows, indexes))

    def _keep(self, chore: KeepStep) -> ChoreDone:
        run, attempt, step = self._run, self._attempt, chore.step
        made = read_parts(run.files, {(it.call, it.part): it.spill for it in chore.parts})
        shown = [read_spill(run.files.path(file)) for file in chore.shown]
        samples = self._archive.of(chore.stay, made, shown) if chore.stay else {}
        self._refuse_superseded()
        archive = merged = None
        if samples:
            archive = write_archive(run, attempt, self._archive.about(step), samples)
        if chore.merges:
            merged = compact_step(run, attempt, step, made)
        return ChoreDone(attempt, step, archive, merged)

    def _refuse_superseded(self) -> None:
        """Who supersedes this attempt has removed the archives that no line names; none is to come after."""
        if self._run.superseded(self._attempt):
            raise StoppedError(f"attempt {self._attempt} of {self._run.root} is superseded")

    def _remove_parts(self, step: int) -> ChoreDone:
        remove_parts(self._run, self._attempt, step)
        return ChoreDone(self._attempt, step)

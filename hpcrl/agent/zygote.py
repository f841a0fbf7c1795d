"""The warm parent of a node's workers: imports the heavy stack once, then forks a worker in hundredths of a second.

Forked from the agent before the agent owns a thread or a socket, so that its children inherit neither. It imports,
forks and reaps; it knows nothing of attempts, the master or models. When the agent dies the kernel kills it, and then
its workers.
"""

import contextlib
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hpcrl.agent.compile_caches import CompileCaches
from hpcrl.agent.imports import ImportWatch
from hpcrl.errors import InternalError
from hpcrl.foreign import plain
from hpcrl.garbage import kept
from hpcrl.plugins import load
from hpcrl.processes import (
    describe_status,
    die_with_parent,
    kill_group,
    lead_group,
    oom_kills,
    out_of_memory,
    redirect_output,
    signal_of,
    work_done,
)
from hpcrl.wire.zygote import (
    Ended,
    Fork,
    Forked,
    ForkHousekeeper,
    FromZygote,
    HousekeeperArgs,
    KillAll,
    ToZygote,
    Unimportable,
    WorkerArgs,
)

LONGEST_FRAME = 1 << 16


@dataclass(frozen=True)
class Work:
    """What is forked does: its process's exit code."""

    run_worker: Callable[[WorkerArgs], int]
    keep_house: Callable[[HousekeeperArgs, socket.socket], int]


@dataclass(frozen=True)
class Exit:
    """A worker, or a housekeeper, that ended, and how."""

    worker: Forked
    ended: Ended


class Zygote:
    """The agent's end. `fork` orders a worker, `fork_housekeeper` whoever does chores; `exits` tells who ended."""

    def __init__(self, imports: tuple[str, ...], work: Work) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self._imports = ImportWatch()
        self._oom_kills = oom_kills()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            _serve(theirs, parent, imports, self._imports, work)
        lead_group(self.pid)
        theirs.close()
        ours.setblocking(False)
        self._socket = ours
        self.caches = CompileCaches(os.environ)
        self.alive: dict[int, Forked] = {}
        self.is_watched = True
        """Whether somebody asks how far its workers' start is; `fork` begins one."""

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def how_it_died(self) -> str:
        """In words, once `exits` has told that it did."""
        return f"the parent of its workers died{out_of_memory(self._oom_kills)}"

    @property
    def doing(self) -> str:
        return self._imports.doing or f"{len(self.pids())} workers"

    @property
    def work(self) -> int:
        """Of itself and its workers, as `work_done` counts it, which reads several files for each thread below; 0 while
        nobody asks."""
        return work_done(self.pid) if self.is_watched else 0

    def pids(self) -> dict[int, int]:
        """Of the workers that are alive, by rank; from any thread."""
        return {worker.rank: worker.pid for worker in list(self.alive.values()) if worker.rank is not None}

    def fork(self, worker: WorkerArgs) -> None:
        """Start a worker."""
        self.is_watched = True
        self._order(Fork(worker))

    def fork_housekeeper(self, housekeeper: HousekeeperArgs, channel: socket.socket) -> None:
        """Start a housekeeper, which gets this end of a socket pair; the caller closes its own copy."""
        self._order(ForkHousekeeper(housekeeper), channel)

    def kill_all(self) -> None:
        """SIGKILL every worker, and the housekeeper; `exits` reports them like any other end."""
        self._order(KillAll())

    def _order(self, order: ToZygote, *channels: socket.socket) -> None:
        """Nobody obeys when the zygote is gone; `exits` tells that it is."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._socket, [msgspec.json.encode(order)], [channel.fileno() for channel in channels])

    def exits(self) -> list[Exit]:
        """Workers that ended since the last call. Raises EOFError when the zygote itself is gone, and InternalError
        with the reason where it could not import what workers need."""
        found: list[Exit] = []
        while True:
            try:
                frame = self._socket.recv(LONGEST_FRAME)
            except BlockingIOError:
                return found
            except ConnectionResetError as error:
                raise EOFError from error
            if not frame:
                raise EOFError
            told = msgspec.json.decode(frame, type=FromZygote)
            if isinstance(told, Unimportable):
                raise InternalError(f"{told.error}.", "Put this node's environment right, then resume.")
            if isinstance(told, Forked):
                self.alive[told.pid] = told
            else:
                found.append(Exit(self.alive.pop(told.pid), told))

    def close(self) -> None:
        """End the zygote and with it all workers, and remove what they have compiled."""
        self._socket.close()
        kill_group(self.pid)
        os.waitpid(self.pid, 0)
        self.caches.remove()


def _serve(
    orders: socket.socket,
    parent: int,
    imports: tuple[str, ...],
    watch: ImportWatch,
    work: Work,
) -> None:
    """The zygote process: never returns."""
    try:
        lead_group(os.getpid())
        die_with_parent(parent)
        for name in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(name, signal.SIG_IGN)
        # A collection in a worker would write to every page that all of them share.
        with watch.watching(), kept():
            _import(orders, imports)
        _fork_and_reap(orders, work)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)


def _import(orders: socket.socket, imports: tuple[str, ...]) -> None:
    # Libraries ask, as they are imported, whether there is a GPU. CUDA must not be asked before the fork; NVML may be.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    for place in imports:
        try:
            load(place)
        except Exception as error:
            said = plain(f"{place} cannot be imported: {type(error).__name__}: {error}")
            orders.send(msgspec.json.encode(Unimportable(said)))
            raise


def _fork_and_reap(orders: socket.socket, work: Work) -> None:
    """Obey until the agent hangs up."""
    children: dict[int, int] = {}
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(orders, selectors.EVENT_READ)
    selector.register(reader, selectors.EVENT_READ)
    while True:
        for ready, _ in selector.select():
            if ready.fd == reader:
                os.read(reader, 4096)
                _reap(orders, children)
                continue
            frame, channels, _, _ = socket.recv_fds(orders, LONGEST_FRAME, 1)
            if not frame:
                return
            order = msgspec.json.decode(frame, type=ToZygote)
            if isinstance(order, KillAll):
                for pid in children:
                    kill_group(pid)
                continue
            kills = oom_kills()
            forked = _obey(orders, order, channels, work)
            children[forked.pid] = kills
            orders.send(msgspec.json.encode(forked))


def _reap(orders: socket.socket, children: dict[int, int]) -> None:
    """`children`: process id → how often the kernel had killed for want of memory before it began."""
    for pid, before in list(children.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            del children[pid]
            kill_group(pid)
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
            by = signal_of(status)
            why = out_of_memory(before) if by == "SIGKILL" else ""
            orders.send(msgspec.json.encode(Ended(pid, describe_status(status) + why, code, by, bool(why))))
            if why:  # it has explained these kills, and no other end
                children.update(dict.fromkeys(children, oom_kills()))


def _obey(orders: socket.socket, order: Fork | ForkHousekeeper, channels: list[int], work: Work) -> Forked:
    if isinstance(order, Fork):
        worker = order.worker
        pid = _fork(orders, lambda: work.run_worker(worker), (Path(worker.out), Path(worker.err)))
        return Forked(pid, worker.attempt, worker.rank)
    housekeeper = order.housekeeper
    with socket.socket(fileno=channels[0]) as channel:
        pid = _fork(orders, lambda: work.keep_house(housekeeper, channel))
    return Forked(pid, housekeeper.attempt, None)


def _fork(orders: socket.socket, run: Callable[[], int], output: tuple[Path, Path] | None = None) -> int:
    """The child runs and never returns from here; without `output` what it prints is its agent's."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        lead_group(pid)
        return pid
    code = 1
    try:
        lead_group(os.getpid())
        die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        orders.close()
        if output is not None:
            redirect_output(*output)
        code = run()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

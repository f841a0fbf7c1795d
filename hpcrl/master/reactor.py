"""A master's loop: beats, hears what came, notices who fell silent, reads commands. Decides nothing.

Owns the sockets and the one thread for what is slow; `turn` is called again and again by whoever waits for something.
Knows who is a member, and no calls: what workers report of those goes to the attempt that is under way.
"""

import math
import time
from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Protocol, TypeVar, get_args

import zmq

from hpcrl.config.cluster import ClusterConfig
from hpcrl.errors import ExitCode
from hpcrl.events import AgentConnected, CallFailed, Event, NodeLeaving, WorkerConnected, WorkerEnded
from hpcrl.master.control import Stop
from hpcrl.master.members import Members
from hpcrl.wire.address import Network
from hpcrl.wire.channel import Gatekeeper, Hub, RunKey
from hpcrl.wire.chores import ChoreDone, ChoreFailed, ChoreReport
from hpcrl.wire.messages import (
    AgentHello,
    AreYouThere,
    Beat,
    Failed,
    Finish,
    Here,
    Message,
    NodeDraining,
    Report,
    WorkerExited,
    WorkerHello,
    WorkerReady,
)

TICK_MS = 50
QUICK_TICK_MS = 5
"""While something is done beside the loop for which it waits."""
GATHER_S = 1e-5
"""A worker: turns are so far apart where messages keep coming. What many say at about the same time is then heard, and
written into the journal, together."""
LOOK_S = 0.3
"""How often it is looked for who fell silent, at most."""

EARLY = 0.7
"""Of `cluster.heartbeat_s`: so far apart beats are due, since one that is due waits for what is being done. So they are
no farther apart than that says, even where a thousand workers answer at once."""

TO_WORKERS = 8
"""How many beats workers get, at least, in the time in which one would be missed: their agents get all, and take them
along."""

REPORTS: tuple[type[Report], ...] = get_args(Report)
"""How calls go, as a worker of this attempt says."""

Result = TypeVar("Result")


class Connections(Protocol):
    """To all members."""

    @property
    def address(self) -> str:
        """Where they connect to."""
        ...

    def receive(self, timeout_ms: int, gather_s: float) -> list[tuple[bytes, Message]]:
        """Wait until something has come, and for so long since the last time; take all of it: (where it came from,
        message)."""
        ...

    def take_lost(self) -> list[str]:
        """The senders of messages that got lost."""
        ...

    def send(self, identity: bytes, body: Message) -> None:
        """At once, or with the next `flush` or `receive`."""
        ...

    def flush(self) -> None:
        """Let what was sent leave."""

    def close(self) -> None:
        """Give what was sent last some time to leave."""


class Sockets:
    """The hub that members connect to, and one wait for what they send and for signals. Fulfils `Connections`."""

    def __init__(self, key: RunKey, name: str, network: Network, wakes: int) -> None:
        self._context = zmq.Context(io_threads=1)
        Gatekeeper(self._context, key)
        self._hub = Hub(self._context, key, name, network)
        self._poller = zmq.Poller()
        for source in (self._hub.socket, wakes):
            self._poller.register(source, zmq.POLLIN)
        self._received = 0.0

    @property
    def address(self) -> str:
        return self._hub.address

    def receive(self, timeout_ms: int, gather_s: float) -> list[tuple[bytes, Message]]:
        self._hub.flush()
        self._poller.poll(timeout_ms)
        if (early_s := self._received + gather_s - time.monotonic()) > 0:
            time.sleep(early_s)
        self._received = time.monotonic()
        return [(identity, envelope.body) for identity, envelope, _raw in self._hub.receive()]

    def take_lost(self) -> list[str]:
        lost, self._hub.incoming.lost_from = self._hub.incoming.lost_from, []
        return lost

    def send(self, identity: bytes, body: Message) -> None:
        self._hub.send(identity, body)

    def flush(self) -> None:
        self._hub.flush()

    def close(self) -> None:
        self._hub.flush()
        self._hub.socket.close(1000)
        self._context.term()


class Listener(Protocol):
    """The attempt that is under way."""

    @property
    def number(self) -> int: ...

    def note(self, event: Event) -> None: ...

    def hear(self, report: Report) -> None:
        """A worker of this attempt says how its calls go."""
        ...

    def hear_agent(self, agent: bytes, report: ChoreReport) -> None:
        """An agent says what became of what it was to do for this attempt, behind the work."""
        ...

    def refuse_superseded(self) -> None:
        """Raise SupersededError when a newer attempt counts."""
        ...


class Caught(Protocol):
    """Which signal came that asks this process to go (`processes.Signals`)."""

    @property
    def caught(self) -> str: ...

    def quiet(self) -> None:
        """It is noticed."""


class Commands(Protocol):
    """What a user has ordered (`Control`)."""

    @property
    def paused(self) -> bool: ...

    @property
    def stop(self) -> Stop: ...

    def poll(self, attempt: int | None, note: Callable[[Event], None]) -> None:
        """Obey new commands; `attempt` is the one that is under way."""


class Reactor:
    """Of one master. `listener` is the attempt that is under way; between two of them there is none."""

    def __init__(
        self,
        sockets: Connections,
        members: Members,
        signals: Caught,
        commands: Commands,
        cluster: ClusterConfig,
        clock: Callable[[], float] = time.monotonic,
        slow: Executor | None = None,
    ) -> None:
        self.members = members
        self.signals = signals
        self.commands = commands
        self.listener: Listener | None = None
        self._sockets = sockets
        self._cluster = cluster
        self._clock = clock
        self._slow = slow or ThreadPoolExecutor(1, thread_name_prefix="slow")
        self._last_turn = clock()
        self._next_beat = self._next_to_workers = self._next_look = 0.0

    @property
    def address(self) -> str:
        """Where members connect to."""
        return self._sockets.address

    # ── the loop ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def turn(self, tick_ms: int = TICK_MS) -> None:
        """Beat, hear what came, notice who fell silent. Blocks for at most a tick, and until the next beat."""
        self._beat()
        due_ms = math.ceil(1000 * max(0.0, self._next_beat - self._clock()))
        came = self._sockets.receive(min(tick_ms, due_ms), GATHER_S * len(self.members.workers))
        self.members.forgive(slept_s=self._clock() - self._last_turn)
        self._last_turn = self._clock()
        self.signals.quiet()
        for identity, body in came:
            self._hear(identity, body)
        self._beat()  # whoever calls this may take as long again as this took
        self._sockets.flush()
        for sender in self._sockets.take_lost():
            self.members.missed(sender)
        self._find_silent()
        self.commands.poll(None if self.listener is None else self.listener.number, self.note)

    def in_background(self, work: Callable[[], Result]) -> Future[Result]:
        """On the thread for what is slow: one thing after another."""
        return self._slow.submit(work)

    def beat_until(self, pending: Future[Result]) -> Result:
        """Go on beating until a result is there, so that everybody hears from this process however long it takes."""
        while not wait([pending], QUICK_TICK_MS / 1000).done:
            self.turn(0)
        return pending.result()

    def while_beating(self, work: Callable[[], Result]) -> Result:
        return self.beat_until(self.in_background(work))

    def note(self, event: Event) -> None:
        """In the events of the attempt, while there is one."""
        if self.listener is not None:
            self.listener.note(event)

    def close(self) -> None:
        self._slow.shutdown(wait=False, cancel_futures=True)
        self._sockets.close()

    # ── sending ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def send(self, rank: int, body: Message) -> None:
        """To a worker of this attempt."""
        self._sockets.send(self.members.workers[rank].identity, body)

    def send_to_node(self, node: int, body: Message) -> None:
        """To the agent of a node."""
        self._sockets.send(self.members.agents[node].identity, body)

    def flush(self) -> None:
        """Let what was sent leave, before something that may be slow."""
        self._sockets.flush()

    def send_to_all(self, body: Message) -> None:
        for member in self.members.everybody:
            self._sockets.send(member.identity, body)

    def let_go(self, node: int, code: ExitCode) -> None:
        """A node goes, with the exit code that its agent is to end with; nobody loses it."""
        self.send_to_node(node, Finish(int(code)))
        self.members.dismiss(node)

    def ask(self, attempt: int, ranks: Collection[int]) -> None:
        """Agents and these workers: who gives no sign of life soon is lost, long before silence alone would tell it."""
        for member in self.members.ask(ranks):
            self._sockets.send(member.identity, AreYouThere(attempt))

    def _beat(self) -> None:
        if self._clock() < self._next_beat:
            return
        self._next_beat = self._clock() + EARLY * self._cluster.heartbeat_s
        if self.listener is not None:
            self.listener.refuse_superseded()
        also_workers = self._clock() >= self._next_to_workers
        if also_workers:
            self._next_to_workers = self._clock() + self._cluster.orphan_timeout_s / TO_WORKERS
        for identity, beat in self.members.beats(also_workers):
            self._sockets.send(identity, beat)

    def _find_silent(self) -> None:
        """Nobody's silence is judged by less than a beat."""
        if self._clock() >= self._next_look:
            self._next_look = self._clock() + min(LOOK_S, self._cluster.heartbeat_s / 2)
            for node, how in self.members.find_silent().items():
                self.note(NodeLeaving(node, how))

    # ── hearing ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def _hear(self, identity: bytes, body: Message) -> None:
        if isinstance(body, Beat):
            self.members.heard(identity, body)
            return
        member = self.members.heard(identity)
        if isinstance(body, REPORTS):
            if self.listener is not None and self.members.is_current(member):
                self.listener.hear(body)
            return
        match body:
            case AgentHello():
                self._welcome(identity, body)
            case NodeDraining() if self.members.is_agent(identity, body.node):
                self.note(NodeLeaving(body.node, body.why))
                if self.members.is_spare(body.node):
                    self.let_go(body.node, ExitCode.REQUEUE)
                else:
                    self.members.draining[body.node] = body.why
            case WorkerExited() | WorkerHello() if self.listener is not None and body.attempt == self.listener.number:
                self._came_or_went(identity, body)
            case ChoreDone() | ChoreFailed() if self.listener is not None and body.attempt == self.listener.number:
                self.listener.hear_agent(identity, body)
            case Here() if self.listener is not None and body.attempt == self.listener.number:
                self.members.answered(identity)
            case WorkerReady() | Failed() if self.members.is_current(member):
                self._told_of_itself(body)

    def _welcome(self, identity: bytes, hello: AgentHello) -> None:
        surplus = self.members.agent(identity, hello)
        self.note(AgentConnected(hello.node, hello.host, hello.pid, welcome=surplus != identity))
        if surplus is not None:
            self._sockets.send(surplus, Finish(int(ExitCode.NEVER_REQUEUE)))

    def _came_or_went(self, identity: bytes, body: WorkerHello | WorkerExited) -> None:
        """A worker of this attempt."""
        if isinstance(body, WorkerHello):
            self.members.worker(identity, body)
            self.note(WorkerConnected(body.rank, body.pid))
        else:
            self.members.exited(body)
            member = self.members.workers.get(body.rank)
            phase = "starting" if member is None else str(member.doing)
            at = body.exit_code, body.signal, body.out_of_memory
            self.note(WorkerEnded(body.rank, body.attempt, body.how, body.log, *at, phase))

    def _told_of_itself(self, body: WorkerReady | Failed) -> None:
        """A worker of this attempt."""
        if isinstance(body, WorkerReady):
            self.members.ready[body.rank] = body
        else:
            self.members.failed(body)
            of_peer = body.broken is not None
            self.note(CallFailed(body.rank, body.what, body.error, "", of_peer, body.exit_code, body.nature))

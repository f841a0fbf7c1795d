"""The nodes of a simulated run: agents that start workers, what happens to them, and the messages between all of them
and the master. Fulfils `hpcrl.master.reactor.Connections`."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from hpcrl.errors import InternalError
from hpcrl.simulation.clock import SECOND_NS, VirtualClock
from hpcrl.simulation.disturbances import Disturbances, NodePreempted, When
from hpcrl.simulation.durations import FORK_NS, MESSAGE_NS
from hpcrl.simulation.worker import Speed, Worker, World
from hpcrl.wire.messages import (
    AgentHello,
    AreYouThere,
    Finish,
    Here,
    Message,
    NodeDraining,
    StartWorkers,
    WorkerExited,
    WorkerHello,
)

TICK_NS = 100_000_000
"""How often a master looks at its clock that waits for nodes, or for what is lost."""
LOOK_NS = 5 * SECOND_NS
"""The same of any other."""
LONGEST_NS = 86_400 * SECOND_NS
"""In which something happens, or nothing ever does."""


@dataclass
class Node:
    """A node and its agent."""

    number: int
    starts: int = 0
    agent: bytes = b""
    """Its identity; empty while it is not there."""
    workers: dict[int, Worker] = field(default_factory=dict)

    def is_there(self) -> bool:
        return bool(self.agent)


class Cluster:
    """Of a run, through all of its attempts. `restless` says whether the master looks at its clock again and again."""

    address = "a simulation"

    def __init__(self, clock: VirtualClock, nodes: int, slots: int, disturbances: Disturbances) -> None:
        self.restless: Callable[[], bool] = lambda: True
        self.silent: set[bytes] = set()
        """Of whom nothing is heard any more."""
        self.orders: list[dict[int, list[tuple[int, str, int]]]] = []
        """Attempt → worker → what it has executed."""
        self._clock = clock
        self._slots = slots
        self._disturbances = disturbances
        self._nodes = [Node(number) for number in range(nodes)]
        self._inbox: list[tuple[bytes, Message]] = []
        self._hear: dict[bytes, Callable[[Message], None]] = {}
        self._world: World | None = None
        self._at_step: dict[int, list[Callable[[], None]]] = defaultdict(list)
        self._speeds: dict[int, Speed] = defaultdict(Speed)
        self._heard_ns = 0

    # ── the master's connections ──────────────────────────────────────────────────────────────────────────────────────
    def receive(self, timeout_ms: int) -> list[tuple[bytes, Message]]:
        """Go on to whatever comes next; nothing where the master looks at its clock before."""
        clock, end_ns = self._clock, self._clock.now_ns + (TICK_NS if self.restless() else LOOK_NS)
        while not self._inbox and timeout_ms and clock.now_ns < end_ns:
            due = clock.next_ns
            clock.go_to(end_ns if due is None else min(due, end_ns))
        came, self._inbox = self._inbox, []
        self._heard_ns = clock.now_ns if came else self._heard_ns
        if clock.now_ns - self._heard_ns > LONGEST_NS:
            raise InternalError("nothing happens any more in this simulation, and the run is not done.")
        return came

    def take_lost(self) -> list[str]:
        return []

    def send(self, identity: bytes, body: Message) -> None:
        if (hear := self._hear.get(identity)) is not None:
            self._clock.after(MESSAGE_NS, partial(hear, body))

    def close(self) -> None:
        """Nothing is open."""

    def say(self, identity: bytes, body: Message) -> None:
        """To the master, if whoever says it lives until it arrives."""

        def arrive() -> None:
            if identity in self._hear:
                self._inbox.append((identity, body))

        self._clock.after(MESSAGE_NS, arrive)

    # ── what is planned ───────────────────────────────────────────────────────────────────────────────────────────────
    def begin(self, seed: int) -> None:
        """Plan what disturbs the run, and have all nodes come once their jobs have waited for their turn."""
        what, clock = self._disturbances, self._clock
        for rank, factor in what.slow:
            self._speeds[rank].calls = factor
        for node, factor in what.slow_disk:
            for slot in range(self._slots):
                self._speeds[node * self._slots + slot].disk = factor
        for lost in what.lost:
            self._plan(lost.when, partial(self._lose, lost.node))
        for killed in what.killed:
            self._plan(killed.when, partial(self._kill, killed.rank))
        for preempted in what.preempted:
            self._plan(preempted.when, partial(self._tell_to_go, preempted))
        self._plan_next_loss(what.losses(len(self._nodes), seed))
        late = dict(what.late)
        for each in self._nodes:
            clock.after(round((what.queue_s + late.get(each.number, 0.0)) * SECOND_NS), partial(self._come, each))

    def start_attempt(self, world: World) -> None:
        """The plan of an attempt is made."""
        self._world = world
        self.orders.append({})

    def opened(self, step: int) -> None:
        """A step is, for the first time."""
        for happen in self._at_step.pop(step, ()):
            happen()

    def requeue(self) -> None:
        """All nodes are given back, and come again once their jobs have waited for their turn."""
        for node in self._nodes:
            self._leave(node, self._disturbances.queue_s)

    def _plan(self, when: When, happen: Callable[[], None]) -> None:
        if when.step is None:
            self._clock.at(round(when.seconds * SECOND_NS), happen)
        else:
            self._at_step[when.step].append(happen)

    def _plan_next_loss(self, losses: Iterator[tuple[int, int]]) -> None:
        found = next(losses, None)
        if found is not None:
            moment, node = found

            def happen() -> None:
                self._lose(node)
                self._plan_next_loss(losses)

            self._clock.at(moment, happen)

    # ── nodes ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    def _come(self, node: Node) -> None:
        if node.is_there():
            return
        node.starts += 1
        node.agent = b"agent-%d.%d" % (node.number, node.starts)
        self._hear[node.agent] = partial(self._agent_hears, node, node.agent)
        incarnation = (1, node.starts)
        hello = AgentHello(node.number, f"node-{node.number}", self._slots, node.starts, incarnation)
        self.say(node.agent, hello)

    def _leave(self, node: Node, again_s: float) -> None:
        """It is gone for the master, which need not be told, and another comes in its place."""
        for rank in list(node.workers):
            self._end(node, rank)
        self._hear.pop(node.agent, None)
        node.agent = b""
        self._clock.after(round(again_s * SECOND_NS), partial(self._come, node))

    def _lose(self, number: int) -> None:
        node = self._nodes[number]
        if node.is_there():
            self.silent |= {node.agent, *(worker.identity for worker in node.workers.values())}
            self._leave(node, self._disturbances.replaced_s)

    def _tell_to_go(self, told: NodePreempted) -> None:
        node = self._nodes[told.node]
        if node.is_there():
            agent = node.agent
            self.say(agent, NodeDraining(told.node, f"it is taken away in {told.notice_s:g} s"))
            self._clock.after(
                round(told.notice_s * SECOND_NS), lambda: self._lose(told.node) if node.agent == agent else None
            )

    def _agent_hears(self, node: Node, agent: bytes, body: Message) -> None:
        if node.agent != agent:
            return
        match body:
            case StartWorkers():
                for rank in list(node.workers):
                    self._end(node, rank)
                if body.ranks:
                    self._clock.after(FORK_NS, partial(self._fork, node, agent, body))
            case AreYouThere():
                self.say(agent, Here(body.attempt))
            case Finish():
                self._leave(node, self._disturbances.replaced_s)

    # ── workers ───────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def _attempt(self) -> int:
        return -1 if self._world is None else self._world.attempt

    def _fork(self, node: Node, agent: bytes, told: StartWorkers) -> None:
        if node.agent != agent or told.attempt != self._attempt or self._world is None:
            return
        for rank in told.ranks:
            worker = node.workers[rank] = Worker(rank, self._world, self._speeds[rank])
            self.orders[-1][rank] = worker.order
            self._hear[worker.identity] = worker.hear
            hello = WorkerHello(told.attempt, rank, rank, f"worker-{rank}", "", "simulated", "simulated")
            self.say(worker.identity, hello)

    def _end(self, node: Node, rank: int) -> None:
        worker = node.workers.pop(rank)
        worker.gone = True
        self._hear.pop(worker.identity, None)

    def _kill(self, rank: int) -> None:
        for node in self._nodes:
            if rank in node.workers:
                self._end(node, rank)
                told = WorkerExited(self._attempt, rank, "killed by SIGKILL", None, "", "SIGKILL")
                self.say(node.agent, told)

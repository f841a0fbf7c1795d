"""The nodes of a simulated run: agents that start workers, what happens to them, and the messages between all of them
and the master. Fulfils `hpcrl.master.reactor.Connections`."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from hpcrl.errors import InternalError
from hpcrl.simulation.clock import SECOND_NS, VirtualClock
from hpcrl.simulation.disturbances import Disturbances, Happening, NodePreempted, WorkerKilled
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


class Mail:
    """Messages that arrive one after another at one moment, with nothing between them, and so at once."""

    def __init__(self, deliver: Callable[[list[tuple[Any, Message]]], None], clock: VirtualClock) -> None:
        self._deliver = deliver
        self._clock = clock
        self._moment_ns = -1
        self._messages: list[tuple[Any, Message]] = []
        self._arrive: Callable[[], None] = lambda: None
        self._then: Sequence[Callable[[], None]] = ()
        """All that happens at that moment."""

    def send(self, to: Any, body: Message) -> None:
        moment_ns = self._clock.now_ns + MESSAGE_NS
        if moment_ns != self._moment_ns or self._then[-1] is not self._arrive:
            self._moment_ns, self._messages = moment_ns, []
            self._arrive = partial(self._deliver, self._messages)
            self._then = self._clock.at(moment_ns, self._arrive)
        self._messages.append((to, body))


class Post(NamedTuple):
    """Both ways."""

    to_master: Mail
    from_master: Mail
    hear: dict[bytes, Callable[[Message], None]]
    """How whoever is there hears what is sent to this identity."""


@dataclass
class Node:
    """A node and its agent."""

    number: int
    starts: int = 0
    due_ns: int = 0
    """When it came, or comes at the earliest."""
    agent: bytes = b""
    """Its identity; empty while it is not there."""
    workers: dict[int, Worker] = field(default_factory=dict)
    disk: float = 1.0
    """How many times as long as usual its workers read and write."""

    def is_there(self) -> bool:
        return bool(self.agent)


class Cluster:
    """Of a run, through all of its attempts. `restless` says whether the master looks at its clock again and again.

    Nodes that are queued wait for their turn each, or `together` for all of them: then one that is gone comes with all.
    """

    address = "a simulation"

    def __init__(
        self, clock: VirtualClock, nodes: int, slots: int, disturbances: Disturbances, *, together: bool = False
    ) -> None:
        self.restless: Callable[[], bool] = lambda: True
        self.silent: set[bytes] = set()
        """Of whom nothing is heard any more."""
        self.orders: list[dict[int, list[tuple[int, str, int]]]] = []
        """Attempt → worker → what it has executed."""
        self._clock = clock
        self._slots = slots
        self._together = together
        self._disturbances = disturbances
        self._nodes = [Node(number) for number in range(nodes)]
        self._inbox: list[tuple[bytes, Message]] = []
        self._mail = Post(Mail(self._arrive, clock), Mail(_told, clock), {})
        self._world: World | None = None
        self._at_step: dict[int, list[Callable[[], None]]] = defaultdict(list)
        self._slow: dict[int, float] = {}
        """Worker → how many times as long as usual its calls last."""
        self._heard_ns = 0
        self._felt: dict[Happening, bool] = {}
        """Those whose moment has come → whether it found whom it is about."""

    # ── the master's connections ──────────────────────────────────────────────────────────────────────────────────────
    def receive(self, timeout_ms: int, gather_s: float = 0.0) -> list[tuple[bytes, Message]]:
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
        if (hear := self._mail.hear.get(identity)) is not None:
            self._mail.from_master.send(hear, body)

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is open."""

    def say(self, identity: bytes, body: Message) -> None:
        """To the master, if whoever says it lives until it arrives."""
        self._mail.to_master.send(identity, body)

    def _arrive(self, messages: list[tuple[bytes, Message]]) -> None:
        hear = self._mail.hear
        self._inbox += [message for message in messages if message[0] in hear]

    # ── what is planned ───────────────────────────────────────────────────────────────────────────────────────────────
    def begin(self, seed: int) -> None:
        """Plan what disturbs the run, and have all nodes come once their jobs have waited for their turn."""
        what, clock = self._disturbances, self._clock
        self._slow = {worker.number: worker.factor for worker in what.slow}
        for node in what.slow_disk:
            self._nodes[node.number].disk = node.factor
        for lost in what.lost:
            self._plan(lost, partial(self._lose, lost.node))
        for killed in what.killed:
            self._plan(killed, partial(self._kill, killed.rank))
        for preempted in what.preempted:
            self._plan(preempted, partial(self._tell_to_go, preempted))
        self._plan_next_loss(what.losses(len(self._nodes), seed))
        late = {it.node: it.seconds for it in what.late}
        for each in self._nodes:
            self._expect(each, clock.now_ns + round((what.queue_s + late.get(each.number, 0.0)) * SECOND_NS))

    def start_attempt(self, world: World) -> None:
        """The plan of an attempt is made."""
        self._world = world
        self.orders.append({})

    def opened(self, step: int) -> None:
        """A step is, for the first time."""
        for happen in self._at_step.pop(step, ()):
            happen()

    def requeue(self) -> int:
        """All nodes are given back, and come again once their jobs have waited for their turn; those that are still to
        be replaced, no earlier than that. Returns when the master's turn has come."""
        turn_ns = self._clock.now_ns + round(self._disturbances.queue_s * SECOND_NS)
        if self._together:
            turn_ns = max(turn_ns, self.all_due_ns)
        for node in self._nodes:
            self._leave(node)
            self._expect(node, max(turn_ns, node.due_ns))
        return turn_ns

    @property
    def all_due_ns(self) -> int:
        """When the last of the nodes came, or comes."""
        return max(node.due_ns for node in self._nodes)

    def unfelt(self) -> Iterator[str]:
        """Of listed disturbances that disturbed nothing, why."""
        for it in self._disturbances.happenings:
            if it not in self._felt:
                yield f"{it.said} never happened: the run ended before."
            elif not self._felt[it]:
                who = f"worker {it.rank}" if isinstance(it, WorkerKilled) else f"node {it.node}"
                yield f"{it.said} disturbed nothing: {who} was not there then."

    def _plan(self, what: Happening, happen: Callable[[], bool]) -> None:
        def feel() -> None:
            self._felt[what] = happen()

        if what.when.step is None:
            self._clock.at(round(what.when.seconds * SECOND_NS), feel)
        else:
            self._at_step[what.when.step].append(feel)

    def _plan_next_loss(self, losses: Iterator[tuple[int, int]]) -> None:
        found = next(losses, None)
        if found is not None:
            moment, node = found

            def happen() -> None:
                self._lose(node)
                self._plan_next_loss(losses)

            self._clock.at(moment, happen)

    # ── nodes ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    def _expect(self, node: Node, moment_ns: int) -> None:
        """It comes then, and not before."""
        node.due_ns = moment_ns
        self._clock.at(moment_ns, partial(self._come, node))

    def _come(self, node: Node) -> None:
        if node.is_there() or self._clock.now_ns < node.due_ns:
            return
        node.starts += 1
        node.agent = b"agent-%d.%d" % (node.number, node.starts)
        self._mail.hear[node.agent] = partial(self._agent_hears, node, node.agent)
        incarnation = (1, node.starts)
        hello = AgentHello(node.number, f"node-{node.number}", self._slots, node.starts, incarnation)
        self.say(node.agent, hello)

    def _leave(self, node: Node) -> None:
        """It is gone for the master, which need not be told."""
        for rank in list(node.workers):
            self._end(node, rank)
        self._mail.hear.pop(node.agent, None)
        node.agent = b""

    def _replace(self, node: Node) -> None:
        """It leaves, and another can come in its place: of itself, or once all are queued again."""
        self._leave(node)
        moment_ns = self._clock.now_ns + round(self._disturbances.replaced_s * SECOND_NS)
        if self._together:
            node.due_ns = moment_ns
        else:
            self._expect(node, moment_ns)

    def _lose(self, number: int) -> bool:
        """Whether it was there."""
        node = self._nodes[number]
        is_there = node.is_there()
        if is_there:
            self.silent |= {node.agent, *(worker.identity for worker in node.workers.values())}
            self._replace(node)
        return is_there

    def _tell_to_go(self, told: NodePreempted) -> bool:
        """Whether it was there."""
        node = self._nodes[told.node]
        is_there = node.is_there()
        if is_there:
            self.say(node.agent, NodeDraining(told.node, f"it is taken away in {told.notice_s:g} s"))
            self._clock.after(round(told.notice_s * SECOND_NS), partial(self._take, node, node.agent))
        return is_there

    def _take(self, node: Node, agent: bytes) -> None:
        """If it is still the one that was told to go."""
        if node.agent == agent:
            self._lose(node.number)

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
                self._replace(node)

    # ── workers ───────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def _attempt(self) -> int:
        return -1 if self._world is None else self._world.attempt

    def _fork(self, node: Node, agent: bytes, told: StartWorkers) -> None:
        if node.agent != agent or told.attempt != self._attempt or self._world is None:
            return
        for rank in told.ranks:
            speed = Speed(self._slow.get(rank, 1.0), node.disk)
            worker = node.workers[rank] = Worker(rank, self._world, speed)
            self.orders[-1][rank] = worker.order
            self._mail.hear[worker.identity] = worker.hear
            hello = WorkerHello(told.attempt, rank, rank, f"worker-{rank}", "", "simulated", "simulated")
            self.say(worker.identity, hello)

    def _end(self, node: Node, rank: int) -> None:
        worker = node.workers.pop(rank)
        worker.gone = True
        self._mail.hear.pop(worker.identity, None)

    def _kill(self, rank: int) -> bool:
        """Whether it was there."""
        node = next((node for node in self._nodes if rank in node.workers), None)
        if node is not None:
            self._end(node, rank)
            told = WorkerExited(self._attempt, rank, "killed by SIGKILL", None, "", "SIGKILL")
            self.say(node.agent, told)
        return node is not None


def _told(messages: list[tuple[Callable[[Message], None], Message]]) -> None:
    for hear, body in messages:
        hear(body)

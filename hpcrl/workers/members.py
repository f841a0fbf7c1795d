"""Who is there: the agents and workers that the master hears, and which of them fell silent.

Judges life by what arrived on the master's own monotonic clock, never by anybody's time stamps. Knows nothing of calls.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from hpcrl.workers.messages import AgentHello, Failed, WorkerExited, WorkerHello


@dataclass
class Member:
    """One connected process."""

    identity: bytes
    heard: float
    doing: str = ""


@dataclass(frozen=True)
class Loss:
    """A member that is gone, since when (wall time) and how."""

    time: float
    who: str
    how: str
    log: str | None = None


@dataclass
class Members:
    """Agents by node and workers by rank; workers belong to one attempt."""

    lost_after_s: float
    clock: Callable[[], float] = time.monotonic
    agents: dict[int, Member] = field(default_factory=dict)
    workers: dict[int, Member] = field(default_factory=dict)
    hellos: dict[int, WorkerHello] = field(default_factory=dict)
    ready: set[int] = field(default_factory=set)
    losses: list[Loss] = field(default_factory=list)
    failures: list[Failed] = field(default_factory=list)
    draining: str = ""
    _by_identity: dict[bytes, Member] = field(default_factory=dict)

    def new_attempt(self) -> None:
        """Forget all workers; agents stay."""
        self.workers.clear()
        self.hellos.clear()
        self.ready.clear()
        self.losses.clear()
        self.failures.clear()
        self._by_identity = {member.identity: member for member in self.agents.values()}

    def heard(self, identity: bytes, doing: str | None = None) -> None:
        member = self._by_identity.get(identity)
        if member is not None:
            member.heard = self.clock()
            member.doing = member.doing if doing is None else doing

    def agent(self, identity: bytes, hello: AgentHello) -> None:
        member = self.agents[hello.node] = Member(identity, self.clock())
        self._by_identity[identity] = member

    def worker(self, identity: bytes, hello: WorkerHello) -> None:
        member = self.workers[hello.rank] = Member(identity, self.clock())
        self._by_identity[identity] = member
        self.hellos[hello.rank] = hello

    def exited(self, told: WorkerExited) -> None:
        self.losses.append(Loss(time.time(), f"worker-{told.rank}", told.how, told.log))

    def find_silent(self) -> None:
        """Count as lost whoever has not been heard for `lost_after_s`; a lost agent leaves the table."""
        late = self.clock() - self.lost_after_s
        for node in [node for node, agent in self.agents.items() if agent.heard < late]:
            del self.agents[node]
            self.losses.append(Loss(time.time(), f"agent-{node}", f"silent for {self.lost_after_s:g} s"))
        known = {loss.who for loss in self.losses}
        for rank, worker in self.workers.items():
            if worker.heard < late and f"worker-{rank}" not in known:
                self.losses.append(Loss(time.time(), f"worker-{rank}", f"silent for {self.lost_after_s:g} s"))

    def missing_nodes(self, nodes: int) -> list[int]:
        return [node for node in range(nodes) if node not in self.agents]

    def all_connected(self, ranks: Collection[int]) -> bool:
        return self.workers.keys() >= set(ranks)

    def all_ready(self, ranks: Collection[int]) -> bool:
        return self.ready >= set(ranks)

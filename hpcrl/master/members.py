"""Who is there: the agents and workers that the master hears, and which of them fell silent.

Judges life by what arrived on the master's own monotonic clock, never by anybody's time stamps. Knows nothing of calls.
"""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from hpcrl.errors import ExitCode
from hpcrl.master.allocation import EVERYTHING
from hpcrl.whereabouts import Doing
from hpcrl.wire.messages import AgentHello, Beat, BeatHeard, Failed, WorkerExited, WorkerHello, WorkerReady

LEAST_ANSWER_S = 3.0
"""How long whoever is asked for a sign of life may take at least. Threads that talk answer in milliseconds."""

FAILURES = (ExitCode.CONFIGURATION, ExitCode.DATA, ExitCode.USER_CODE, ExitCode.INTERNAL)


@dataclass
class Member:
    """One connected process."""

    identity: bytes
    heard: float
    doing: Doing = field(default_factory=Doing)
    work: int = 0
    """As its last beat has it."""
    since: float = 0.0
    """When it began to do that, or has last come further with it."""
    asked: float | None = None
    """When it was asked for a sign of life that it still owes."""
    beat: tuple[float, float] | None = None
    """When its newest beat was sent, by its own clock, and heard; only of agents, who are answered."""
    rank: int | None = None
    """Of a worker."""


@dataclass(frozen=True)
class LostMember:
    """A member that is gone: when this process learned of it (its monotonic clock), and how it ended."""

    learned: float
    who: str
    how: str
    log: str | None = None


@dataclass(frozen=True)
class RaisedError:
    """Code that raised, and when this process learned of it (its monotonic clock)."""

    learned: float
    told: Failed


@dataclass
class Members:
    """Agents by node and workers by rank; workers belong to one attempt. Nodes beyond `nodes` are not waited for.

    A node is missing, or has a place in the attempt (`seats`), or is spare: its agent is there, and no part of it.
    """

    nodes: int
    lost_after_s: float
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    agents: dict[int, Member] = field(default_factory=dict)
    workers: dict[int, Member] = field(default_factory=dict)
    hellos: dict[int, WorkerHello] = field(default_factory=dict)
    ready: dict[int, WorkerReady] = field(default_factory=dict)
    losses: list[LostMember] = field(default_factory=list)
    failures: list[RaisedError] = field(default_factory=list)
    draining: dict[int, str] = field(default_factory=dict)
    hosts: dict[int, AgentHello] = field(default_factory=dict)
    seats: frozenset[int] | None = None
    """The nodes of this attempt; None before they are known: then every node is as good as one."""
    roll_called: bool = False
    """Whether agents and peers were asked for a sign of life in this attempt."""
    _by_identity: dict[bytes, Member] = field(default_factory=dict)

    def new_attempt(self) -> None:
        """Forget all workers; agents stay."""
        self.seats = None
        self.workers.clear()
        self.hellos.clear()
        self.ready.clear()
        self.losses.clear()
        self.failures.clear()
        self.roll_called = False
        for agent in self.agents.values():
            agent.asked = None
        self._by_identity = {member.identity: member for member in self.agents.values()}

    def heard(self, identity: bytes, beat: Beat | None = None) -> Member | None:
        """Something has come from whoever has this identity; None where nobody has."""
        member = self._by_identity.get(identity)
        if member is None:
            return None
        member.heard = self.clock()
        if beat is None:
            return member
        if beat.sent:
            member.beat = beat.sent, member.heard
        if beat.work != member.work or beat.doing != member.doing:
            member.doing, member.work, member.since = beat.doing, beat.work, member.heard
        return member

    def ask(self, ranks: Collection[int]) -> list[Member]:
        """Agents and these workers, who are asked for a sign of life from now on."""
        self.roll_called = True
        seated = [agent for node, agent in self.agents.items() if not self.is_spare(node)]
        asked = [*seated, *(worker for rank, worker in self.workers.items() if rank in ranks)]
        for member in asked:
            member.asked = self.clock()
        return asked

    def beats(self, also_workers: bool) -> Iterator[tuple[bytes, Beat]]:
        """The master's own: with the answer to the newest one of an agent, which is given once."""
        alive = Beat(sent=self.clock())
        for member in self.everybody if also_workers else self.agents.values():
            beat, member.beat = member.beat, None
            answer = None if beat is None else BeatHeard(*beat, self.clock(), self.now())
            yield member.identity, alive if answer is None else Beat(sent=alive.sent, heard=answer)

    def answered(self, identity: bytes) -> None:
        member = self._by_identity.get(identity)
        if member is not None:
            member.asked = None

    def agent(self, identity: bytes, hello: AgentHello) -> bytes | None:
        """Take an agent in; returns the identity of the one that has to go, if the node has two, or is one too many.

        Of two the one that was started later counts: the other may be cut off from Slurm, and not know that it ended.
        """
        if hello.node >= self.nodes:
            return identity
        known, there = self.hosts.get(hello.node), self.agents.get(hello.node)
        surplus = there if known is not None and known.pid != hello.pid else None
        if known is not None and surplus is not None:
            if hello.incarnation <= known.incarnation:
                return identity
            if not self.is_spare(hello.node):
                self.losses.append(LostMember(self.clock(), f"agent-{hello.node}", f"started again on {hello.host}"))
        self.hosts[hello.node] = hello
        self.draining.pop(hello.node, None)
        member = self.agents[hello.node] = Member(identity, self.clock())
        self._by_identity[identity] = member
        return None if surplus is None else surplus.identity

    def is_agent(self, identity: bytes, node: int) -> bool:
        """Whether this is the one that counts of the node's agents."""
        return node in self.agents and self.agents[node].identity == identity

    def is_spare(self, node: int) -> bool:
        return self.seats is not None and node not in self.seats

    @property
    def spare(self) -> list[int]:
        """Nodes whose agents are there, and that have no place in this attempt."""
        return sorted(node for node in self.agents if self.is_spare(node))

    def dismiss(self, node: int) -> None:
        """A node goes in good order: it is missing, not lost."""
        self.draining.pop(node, None)
        self.agents.pop(node, None)

    def forget_gone(self) -> None:
        """Whose agent is gone has nothing left to go for: what it said of that is no news to an attempt that begins."""
        self.draining = {node: why for node, why in self.draining.items() if node == EVERYTHING or node in self.agents}

    def worker(self, identity: bytes, hello: WorkerHello) -> None:
        member = self.workers[hello.rank] = Member(identity, self.clock(), since=self.clock(), rank=hello.rank)
        self._by_identity[identity] = member
        self.hellos[hello.rank] = hello

    def exited(self, told: WorkerExited) -> None:
        """A worker ended. With the exit code of an error that another attempt would not cure, its code has failed."""
        if told.exit_code in FAILURES:
            failed = Failed(told.rank, "starting", f"{told.how}, see {told.log}", "", told.exit_code, self.now())
            self.failed(failed)
        else:
            self.losses.append(LostMember(self.clock(), f"worker-{told.rank}", told.how, told.log))

    def failed(self, told: Failed) -> None:
        self.failures.append(RaisedError(self.clock(), told))

    def missed(self, sender: str) -> None:
        """A message of this sender got lost: nobody knows what it said. What a relay carried is missed by itself."""
        who = ".".join(sender.split(".")[:1])
        kind, _, node = who.partition("-")
        if kind == "relay":
            return
        if kind == "agent" and self.is_spare(int(node)):
            return  # it connects anew
        self.losses.append(LostMember(self.clock(), who, "a message of it got lost while it reconnected"))

    def is_current(self, member: Member | None) -> bool:
        """Whether it is a worker of this attempt; what a late one of an older attempt says is not heard."""
        return member is not None and member.rank is not None and self.workers.get(member.rank) is member

    def waits_for(self, identity: bytes) -> bool:
        """Whether it is of a member whose silence would count."""
        member = self._by_identity.get(identity)
        return member is not None and any(member is known for known in self.everybody)

    def find_silent(self) -> dict[int, str]:
        """Count as lost whoever has not been heard for `lost_after_s`, or was asked and has not answered in time; a
        lost agent leaves the table. Returns the spare nodes that are gone so, and how: nobody has lost them."""
        gone, now = {}, self.clock()
        for node, how in [(node, how) for node, agent in self.agents.items() if (how := self._silence(agent, now))]:
            del self.agents[node]
            if self.is_spare(node):
                gone[node] = how
                continue
            told = f"{self.draining[node]}, then " if node in self.draining else ""
            self.losses.append(LostMember(self.clock(), f"agent-{node}", told + how))
        known = {loss.who for loss in self.losses}
        for rank, worker in self.workers.items():
            if (how := self._silence(worker, now)) and f"worker-{rank}" not in known:
                self.losses.append(LostMember(self.clock(), f"worker-{rank}", how))
        return gone

    def _silence(self, member: Member, now: float) -> str:
        """How long it has been silent if that is too long, in words."""
        if now - member.heard > self.lost_after_s:
            return f"silent for {self.lost_after_s:g} s"
        if member.asked is not None and now - member.asked > self.answer_s:
            return f"gave no sign of life within {round(self.answer_s, 1):g} s"
        return ""

    def forgive(self, slept_s: float) -> None:
        """This process did not listen for so long: if that was too long, nobody is blamed for the silence."""
        if slept_s <= min(self.lost_after_s, self.answer_s) / 2:
            return
        for member in self.everybody:
            if slept_s > self.lost_after_s / 2:
                member.heard = self.clock()
            if slept_s > self.answer_s / 2 and member.asked is not None:
                member.asked = self.clock()

    @property
    def answer_s(self) -> float:
        """How long whoever is asked for a sign of life may take; longer where silence is borne for longer."""
        return max(LEAST_ANSWER_S, self.lost_after_s / 3)

    def newest_progress(self, ranks: Collection[int]) -> float:
        """When one of these workers has last begun something, or come further with it.

        Until all are connected their agents speak for them: what the parents of workers import, and what is computed
        below them.
        """
        speaking = self.workers.values() if self.all_connected(ranks) else self.everybody
        return max((member.since for member in speaking), default=0.0)

    @property
    def all_answered(self) -> bool:
        return not self.roll_called or all(member.asked is None for member in self.everybody)

    @property
    def everybody(self) -> list[Member]:
        return [*self.workers.values(), *self.agents.values()]

    @property
    def missing(self) -> dict[int, tuple[int, int] | None]:
        """Node without an agent → the incarnation of the agent that it had, if it ever had one."""
        hosts = self.hosts
        return {n: hosts[n].incarnation if n in hosts else None for n in range(self.nodes) if n not in self.agents}

    def all_connected(self, ranks: Collection[int]) -> bool:
        return self.workers.keys() >= set(ranks)

    def may_meet(self, ranks: Collection[int]) -> bool:
        """Whether all are connected, and each has what the others need of it."""
        return self.all_connected(ranks) and not any(self.hellos[rank].failed for rank in ranks)

    def all_ready(self, ranks: Collection[int]) -> bool:
        return self.ready.keys() >= set(ranks)

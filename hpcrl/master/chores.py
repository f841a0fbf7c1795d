"""Agents do chores in turn: each chore one of them, and another where its node is gone, or does not manage it."""

from collections import Counter, deque
from collections.abc import Collection
from typing import NamedTuple, Protocol

from hpcrl.durable.files import DamagedFileError
from hpcrl.errors import ExitCode, HpcrlError
from hpcrl.master.reactor import Reactor
from hpcrl.wire.chores import Chore, ChoreDone, ChoreFailed, ChoreReport

TRIES = 3


class Crew(Protocol):
    """Those who do chores."""

    def nodes(self) -> Collection[int]:
        """Whose agents are there, and stay."""
        ...

    def agent_of(self, node: int) -> bytes | None:
        """Who that is; None where there is none."""
        ...

    def order(self, node: int, chore: Chore) -> None: ...


class Agents:
    """Of one master. Fulfils `Crew`."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._members = reactor.members

    def nodes(self) -> Collection[int]:
        return self._members.agents.keys() - self._members.draining.keys()

    def agent_of(self, node: int) -> bytes | None:
        agent = self._members.agents.get(node)
        return None if agent is None else agent.identity

    def order(self, node: int, chore: Chore) -> None:
        self._reactor.send_to_node(node, chore)


class ChoreError(HpcrlError):
    """A chore failed on a node, for a reason that another would not cure, or on as many as it was tried on."""

    def __init__(self, node: int, told: ChoreFailed) -> None:
        self.exit_code = ExitCode(told.exit_code)  # type: ignore[misc]
        self.nature = told.nature
        super().__init__(f"the housekeeping of step {told.step} failed on node {node}: {told.error}")


class Given(NamedTuple):
    """A chore that an agent has."""

    chore: Chore
    agent: bytes


class Turns:
    """Of one attempt. A node has one chore at a time."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._waiting: deque[Chore] = deque()
        self._given: dict[int, Given] = {}
        self._tries: Counter[tuple[type[Chore], int]] = Counter()
        """That failed, by what was to be done."""
        self._next = 0
        """The node whose turn it is, or the first one after it that is free."""

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._given

    def add(self, chore: Chore) -> None:
        """Another chore, to be given by `give`."""
        self._waiting.append(chore)

    def give(self) -> None:
        """Give what waits to agents that are free, and again what an agent has that is gone."""
        for node, given in list(self._given.items()):
            if self._crew.agent_of(node) != given.agent:
                self._take_back(node)
        if not self._waiting:
            return
        free = sorted(self._crew.nodes() - self._given.keys())
        first = next((index for index, node in enumerate(free) if node >= self._next), 0)
        for node in (*free[first:], *free[:first]):
            agent = self._crew.agent_of(node)
            if self._waiting and agent is not None:
                chore = self._waiting.popleft()
                self._given[node] = Given(chore, agent)
                self._crew.order(node, chore)
                self._next = node + 1

    def heard(self, agent: bytes, told: ChoreReport) -> tuple[Chore, ChoreDone] | None:
        """What an agent tells of its chore; that, once it is done. Raises what cannot be helped elsewhere."""
        node = next((node for node, given in self._given.items() if given.agent == agent), None)
        if node is None or self._given[node].chore.step != told.step:
            return None
        chore = self._given[node].chore
        if isinstance(told, ChoreDone):
            del self._given[node]
            return chore, told
        if told.damage:
            raise DamagedFileError(told.damage)
        self._tries[type(chore), chore.step] += 1
        if not told.elsewhere or self._tries[type(chore), chore.step] == TRIES:
            raise ChoreError(node, told)
        print(f"the housekeeping of step {told.step} is tried again, for on node {node} {told.error}", flush=True)
        self._take_back(node)
        return None

    def _take_back(self, node: int) -> None:
        self._waiting.appendleft(self._given.pop(node).chore)

"""Agents that do chores, as a table."""

from collections.abc import Collection

from hpcrl.wire.chores import Chore


class Table:
    """Agents by node, and what each was told. Fulfils `Crew`."""

    def __init__(self, *nodes: int) -> None:
        self.agents = {node: b"agent-%d" % node for node in nodes}
        self.told: list[tuple[int, int]] = []
        """(node, step)"""
        self.kinds: list[str] = []

    def nodes(self) -> Collection[int]:
        return self.agents.keys()

    def agent_of(self, node: int) -> bytes | None:
        return self.agents.get(node)

    def order(self, node: int, chore: Chore) -> None:
        self.told.append((node, chore.step))
        self.kinds.append(type(chore).__name__)

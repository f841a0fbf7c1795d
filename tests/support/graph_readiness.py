"""A `Readiness` that is told the units of a graph's steps, as the master's driver tells it."""

from collections.abc import Collection

import networkx as nx

from hpcrl.dataflow.readiness import Readiness, Unit
from hpcrl.dataflow.units import Parts, units_of, window


class GraphReadiness(Readiness):
    """`room` is how many steps may be open where no call lags."""

    def __init__(self, graph: nx.DiGraph, room: int = 2) -> None:
        super().__init__(window(graph, room))
        self._graph = graph
        self._told_units: set[Unit] = set()

    def enter(self, step: int, calls: Collection[str], parts: Parts, more: bool = False) -> None:
        tasks = units_of(self._graph, step, calls, parts)
        self.open(step, tasks, more)
        self._told_units = {task.unit for task in tasks}

    def follow(self, step: int, calls: Collection[str], parts: Parts, more: bool = False) -> None:
        """More calls or parts of the step that was entered last; `calls` and `parts` are all that it has now."""
        tasks = units_of(self._graph, step, calls, parts, self._told_units)
        self.extend(step, tasks, more)
        self._told_units |= {task.unit for task in tasks}

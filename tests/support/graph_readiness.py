"""A `Readiness` that is told the units of a graph's steps, as the master's driver tells it."""

from collections.abc import Collection, Mapping

from hpcrl.dataflow.graph import Graph
from hpcrl.dataflow.readiness import Readiness
from hpcrl.dataflow.tasks import Unit
from hpcrl.dataflow.units import Parts, units_of, window


class GraphReadiness(Readiness):
    """`room` is how many steps may be open where no call lags; calls are made at `replicas`, else at home."""

    def __init__(self, graph: Graph, room: int = 2, replicas: Mapping[str, int] = {}) -> None:
        super().__init__(window(graph, room))
        self._graph = graph
        self._replicas = replicas
        self._told_units: set[Unit] = set()

    def enter(self, step: int, calls: Collection[str], parts: Parts, more: bool = False) -> None:
        tasks = units_of(self._graph, step, calls, parts, (), self._replicas)
        self.open(step, tasks, more)
        self._told_units = {task.unit for task in tasks}

    def follow(self, step: int, calls: Collection[str], parts: Parts, more: bool = False) -> None:
        """More calls or parts of the step that was entered last; `calls` and `parts` are all that it has now."""
        tasks = units_of(self._graph, step, calls, parts, self._told_units, self._replicas)
        self.extend(step, tasks, more)
        self._told_units |= {task.unit for task in tasks}

"""A `Readiness` that is told the units of a graph's steps, as the master's driver tells it."""

from collections.abc import Collection

import networkx as nx

from hpcrl.dataflow.readiness import Readiness
from hpcrl.dataflow.units import Parts, units_of, window


class GraphReadiness(Readiness):
    """`room` is how many steps may be open where no call lags."""

    def __init__(self, graph: nx.DiGraph, room: int = 2) -> None:
        super().__init__(window(graph, room))
        self._graph = graph

    def enter(self, step: int, calls: Collection[str], parts: Parts) -> None:
        self.open(step, units_of(self._graph, step, calls, parts))

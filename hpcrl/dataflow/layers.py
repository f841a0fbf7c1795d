"""Where the parts of a drawn dataflow graph lie: a layered layout, left to right (Sugiyama, Tagawa and Toda 1981).

Pure combinatorics. A *net* is one producer's keys on their way to all calls that read exactly those; where it passes a
column of calls it has a place of its own there, so that no line crosses a box.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import fmean as mean

import networkx as nx

from hpcrl.dataflow.graph import mfc_of, topological_order

SWEEPS = 12
DATA_SETS: Mapping[str, str] = {"train": "data set", "eval": "evaluation set"}


@dataclass(frozen=True)
class Net:
    """Keys that flow from a call, or a data set, to calls."""

    source: str
    keys: tuple[str, ...]
    targets: tuple[str, ...]


@dataclass(frozen=True)
class Passage:
    """Where a net passes a column."""

    net: Net
    column: int


Item = str | Passage
Columns = list[list[Item]]


def nets_of(graph: nx.DiGraph, source: str) -> list[Net]:
    """All nets among the calls on one data set (`train` or `eval`), by producer, nearest reader first."""
    readers: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for call in calls_on(graph, source):
        from_data = tuple(key for key in mfc_of(graph, call).inputs if key in graph.graph[f"{_PREFIX[source]}_keys"])
        if from_data:
            readers.setdefault((DATA_SETS[source], from_data), []).append(call)
        for producer, _, edge in graph.in_edges(call, data=True):
            if edge["kind"] == "data":
                readers.setdefault((producer, edge["keys"]), []).append(call)
    return [Net(producer, keys, tuple(targets)) for (producer, keys), targets in readers.items()]


_PREFIX: Mapping[str, str] = {"train": "dataset", "eval": "eval"}


def calls_on(graph: nx.DiGraph, source: str) -> list[str]:
    return [call for call in topological_order(graph) if mfc_of(graph, call).dataset == source]


def arrange(calls: Sequence[str], nets: Sequence[Net], loops: Sequence[tuple[str, str | None]]) -> Columns:
    """Calls in columns after what they read, and within columns so that few lines cross.

    `loops` are lines drawn around the columns, from a call back to another, or down and away (None). They want both
    ends at the same edge.
    """
    column = _column_of(calls, nets)
    columns: Columns = [[] for _ in range(1 + max(column.values(), default=-1))]
    for item, where in column.items():
        columns[where].append(item)
    for net in nets:
        for where in range(column[net.source] + 1, max(column[target] for target in net.targets)):
            columns[where].append(Passage(net, where))
    links = [link for net in nets for link in _links(net, column)]
    for sweep in range(SWEEPS):
        columns = _swept(columns, links, rightwards=sweep % 2 == 0)
    return _settled(columns, lambda tried: crossings(tried, links) + detours(tried, loops))


def _column_of(calls: Sequence[str], nets: Sequence[Net]) -> dict[str, int]:
    """The longest way from a data set. `calls` are in topological order."""
    column: dict[str, int] = {net.source: 0 for net in nets if net.source not in calls}
    for call in calls:
        column[call] = max((1 + column[net.source] for net in nets if call in net.targets), default=0)
    return column


def _links(net: Net, column: Mapping[str, int]) -> list[tuple[Item, Item]]:
    """The pieces of a net between neighbouring columns, as (left, right)."""
    first, last = column[net.source], max(column[target] for target in net.targets)
    trunk: list[Item] = [net.source, *(Passage(net, where) for where in range(first + 1, last))]
    return [*pairwise(trunk), *((trunk[column[target] - first - 1], target) for target in net.targets)]


def _swept(columns: Columns, links: Sequence[tuple[Item, Item]], rightwards: bool) -> Columns:
    """Each column ordered by the mean place of its neighbours in the column before."""
    places = {item: index / len(column) for column in columns for index, item in enumerate(column)}
    neighbours: dict[Item, list[Item]] = {item: [] for item in places}
    for left, right in links:
        here, there = (right, left) if rightwards else (left, right)
        neighbours[here].append(there)
    swept: Columns = []
    for column in columns if rightwards else reversed(columns):
        means = dict(places)
        means.update((item, mean(places[other] for other in neighbours[item])) for item in column if neighbours[item])
        ordered = sorted(column, key=means.__getitem__)
        places.update((item, index / len(ordered)) for index, item in enumerate(ordered))
        swept.append(ordered)
    return swept if rightwards else swept[::-1]


def _settled(columns: Columns, cost: Callable[[Columns], int]) -> Columns:
    """Exchange two items of a column as long as that lowers the cost."""
    columns, lowest = [list(column) for column in columns], cost(columns)
    improved = True
    while improved:
        improved = False
        for column in columns:
            for i, j in combinations(range(len(column)), 2):
                column[i], column[j] = column[j], column[i]
                if (tried := cost(columns)) < lowest:
                    lowest, improved = tried, True
                else:
                    column[i], column[j] = column[j], column[i]
    return columns


def crossings(columns: Columns, links: Sequence[tuple[Item, Item]]) -> int:
    """How many pairs of links cross, were they straight."""
    place = {item: (where, index) for where, column in enumerate(columns) for index, item in enumerate(column)}
    ends = sorted((place[left], place[right]) for left, right in links)
    return sum(
        one[0][0] == other[0][0] and one[0] < other[0] and one[1] > other[1] for one, other in combinations(ends, 2)
    )


def detours(columns: Columns, loops: Sequence[tuple[str, str | None]]) -> int:
    """How many boxes lie between the ends of loops and the edge along which these run, top or bottom."""
    above: dict[str, int] = {}
    below: dict[str, int] = {}
    for column in columns:
        boxes = [item for item in column if isinstance(item, str)]
        above.update((box, index) for index, box in enumerate(boxes))
        below.update((box, len(boxes) - 1 - index) for index, box in enumerate(boxes))
    return sum(
        below[source] if target is None else min(above[source] + above[target], below[source] + below[target])
        for source, target in loops
    )

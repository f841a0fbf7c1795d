"""Where the parts of a drawn dataflow graph lie, in pixels. `layers` decides what stands beside what; this measures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import networkx as nx

from hpcrl.dataflow.graph import mfc_of
from hpcrl.dataflow.layers import DATA_SETS, Columns, Item, Net, Passage, arrange, calls_on, nets_of

BOX_HEIGHT, BOX_PADDING, PORT, ENTRY = 46, 14, 18, 13
GAP, PASSAGE_HEIGHT, FAN, MARGIN, TRACK = 24, 14, 58, 24, 26
NAME_WIDTH, NOTE_WIDTH = 7.9, 6.4  # of a character at 13 and 11 pixels

Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A rectangle, by its centre."""

    x: float
    y: float
    width: float
    height: float

    @property
    def left(self) -> float:
        return self.x - self.width / 2

    @property
    def right(self) -> float:
        return self.x + self.width / 2

    @property
    def top(self) -> float:
        return self.y - self.height / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height / 2


@dataclass(frozen=True)
class Lane:
    """The calls on one data set, arranged."""

    columns: Columns
    nets: Sequence[Net]

    def column_of(self, item: Item) -> int:
        return next(where for where, column in enumerate(self.columns) if item in column)

    def holds(self, call: str) -> bool:
        return any(call in column for column in self.columns)

    def is_outermost(self, call: str, above: bool) -> bool:
        """Whether no box lies between a call and that edge of the lane."""
        boxes = [item for item in self.columns[self.column_of(call)] if isinstance(item, str)]
        return boxes[0 if above else -1] == call

    def out_of(self, call: Item) -> list[Net]:
        return [net for net in self.nets if net.source == call]

    def into(self, call: Item) -> list[Net]:
        return [net for net in self.nets if call in net.targets]


@dataclass(frozen=True)
class Loop:
    """A role's parameters on their way to a call that reads them `steps` later; above the first lane, or below it."""

    train: str
    reader: str
    steps: int
    above: bool
    track: int  # from the lane outwards
    exit_shift: float  # pixels


@dataclass(frozen=True)
class Layout:
    """Where everything lies."""

    lanes: Sequence[Lane]
    boxes: Mapping[Item, Box]
    fans: Sequence[float]  # where the lines that leave a column may turn: x
    loops: Sequence[Loop]

    def port(self, net: Net, lane: Lane) -> float:
        """Where a net leaves its source: y."""
        box, nets = self.boxes[net.source], lane.out_of(net.source)
        nets.sort(key=lambda out: self._next_stop(out, lane))
        return box.y + (nets.index(net) - (len(nets) - 1) / 2) * PORT

    def _next_stop(self, net: Net, lane: Lane) -> float:
        """The height of a net in the column after its source; on the average, if it branches there."""
        column = lane.column_of(net.source) + 1
        stops = [item for item in lane.columns[column] if item in net.targets or item == Passage(net, column)]
        return sum(self.boxes[item].y for item in stops) / len(stops)

    def entry(self, net: Net, target: str, lane: Lane) -> float:
        """Where a net arrives at a call: y."""
        box, nets = self.boxes[target], lane.into(target)
        nets.sort(key=lambda coming: self.last_stop(coming, lane.column_of(target), lane)[1])
        return box.y + (nets.index(net) - (len(nets) - 1) / 2) * ENTRY

    def last_stop(self, net: Net, column: int, lane: Lane) -> Point:
        """Where a net is before it turns towards `column`."""
        before = column - 1
        at_source = lane.column_of(net.source) == before
        return self.fans[before], self.port(net, lane) if at_source else self.boxes[Passage(net, before)].y


def lay_out(graph: nx.DiGraph) -> Layout:
    """Place all calls on training data in one lane, and those on evaluation data in another below it."""
    versions = sorted((u, v, edge["steps"]) for u, v, edge in graph.edges(data=True) if edge["kind"] == "version")
    lanes = [_lane(graph, source, versions) for source in DATA_SETS if calls_on(graph, source)]
    loops = [loop for above in (True, False) for loop in _loops(lanes, versions, above)]
    tracks = {above: sum(loop.above == above for loop in loops) for above in (True, False)}
    widths = _widest([[_widest_box(graph, column) for column in lane.columns] for lane in lanes])
    fans = _widest([[_widest_label(lane, column) for column in lane.columns] for lane in lanes])
    pitches = [width + fan + FAN for width, fan in zip(widths, fans, strict=True)]
    lefts = list(accumulate(pitches, initial=float(MARGIN)))[: len(widths)]
    centres = [left + width / 2 for left, width in zip(lefts, widths, strict=True)]
    boxes: dict[Item, Box] = {}
    top = float(MARGIN + tracks[True] * TRACK)
    for lane in lanes:
        boxes |= _stack(lane, top, centres, widths)
        top = max(boxes[item].bottom for column in lane.columns for item in column) + tracks[False] * TRACK + 2 * GAP
    turns = [left + width + fan for left, width, fan in zip(lefts, widths, fans, strict=True)]
    return Layout(lanes, boxes, turns, loops)


def _stack(lane: Lane, top: float, centres: Sequence[float], widths: Sequence[float]) -> dict[Item, Box]:
    """The boxes of a lane: columns around a common middle, the tallest beginning at `top`."""
    heights = {item: _height(lane, item) for column in lane.columns for item in column}
    tallest = max(_stacked(heights, column) for column in lane.columns)
    boxes: dict[Item, Box] = {}
    for column, x, width in zip(lane.columns, centres, widths, strict=False):
        y = top + (tallest - _stacked(heights, column)) / 2
        for item in column:
            boxes[item] = Box(x, y + heights[item] / 2, width, heights[item])
            y += heights[item] + GAP
    return boxes


def _lane(graph: nx.DiGraph, source: str, versions: Sequence[tuple[str, str, int]]) -> Lane:
    calls, nets = calls_on(graph, source), nets_of(graph, source)
    loops = [(train, reader if reader in calls else None) for train, reader, _ in versions if train in calls]
    return Lane(arrange(calls, nets, loops), nets)


def _loops(lanes: Sequence[Lane], versions: Sequence[tuple[str, str, int]], above: bool) -> list[Loop]:
    """The loops on one side of the first lane, short ones inside."""
    lane = lanes[0] if lanes else Lane([], [])
    mine = [version for version in versions if _runs_above(lane, *version[:2]) == above]
    mine.sort(key=lambda version: _span(lane, *version[:2]))
    leaving = [train for train, _, _ in mine]
    return [
        Loop(train, reader, steps, above, track, (leaving[:track].count(train) - (leaving.count(train) - 1) / 2) * 20)
        for track, (train, reader, steps) in enumerate(mine)
    ]


def _runs_above(lane: Lane, train: str, reader: str) -> bool:
    """Whether a loop is better off above the lane. Below it run those with both ends there, and those that leave it."""
    if not lane.holds(reader):
        return False
    at_top, at_bottom = (all(lane.is_outermost(call, above) for call in (train, reader)) for above in (True, False))
    return at_top or not at_bottom


def _span(lane: Lane, train: str, reader: str) -> int:
    return lane.column_of(train) - lane.column_of(reader) if lane.holds(reader) else len(lane.columns)


def _widest(rows: Sequence[Sequence[float]]) -> list[float]:
    """The greatest value of each column; rows may end early."""
    return [max(row[i] for row in rows if i < len(row)) for i in range(max(map(len, rows), default=0))]


def _stacked(heights: Mapping[Item, float], column: Sequence[Item]) -> float:
    return sum(heights[item] for item in column) + GAP * (len(column) - 1)


def _height(lane: Lane, item: Item) -> float:
    """Room for every net that leaves and every one that comes."""
    if isinstance(item, Passage):
        return PASSAGE_HEIGHT
    return max(BOX_HEIGHT, PORT * len(lane.out_of(item)) + 8, ENTRY * len(lane.into(item)) + 12)


def _widest_box(graph: nx.DiGraph, column: Sequence[Item]) -> float:
    texts = [(item, note(graph, item)) for item in column if isinstance(item, str)]
    return max(
        (2 * BOX_PADDING + max(len(name) * NAME_WIDTH, len(below) * NOTE_WIDTH) for name, below in texts), default=0
    )


def _widest_label(lane: Lane, column: Sequence[Item]) -> float:
    leaving = [net for item in column for net in lane.out_of(item)]
    return max((len(label(net)) * NOTE_WIDTH + 10 for net in leaving), default=0)


def note(graph: nx.DiGraph, item: str) -> str:
    """The second line of a box."""
    if item not in graph:
        return ""
    mfc = mfc_of(graph, item)
    return f"{mfc.role} · {mfc.kind}"


def label(net: Net) -> str:
    return ", ".join(net.keys)

"""A dataflow graph as SVG: data from left to right, parameters around it on dashed lines. Needs no other program.

Every line is an edge of the graph. "order" edges (a train_step after the reads of what it overwrites) are left out:
each runs beside a dashed line, the other way. `layers` decides what stands beside what; this measures and draws.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from xml.sax.saxutils import escape

import networkx as nx

from hpcrl.dataflow.graph import mfc_of
from hpcrl.dataflow.layers import DATA_SETS, Columns, Item, Net, Passage, arrange, calls_on, nets_of

# pixels
BOX_HEIGHT, BOX_PADDING, PORT, ENTRY = 46, 14, 18, 13
GAP, PASSAGE_HEIGHT, FAN, MARGIN, TRACK, CORNER, LEGEND = 24, 14, 58, 24, 26, 9, 44
NAME_WIDTH, NOTE_WIDTH = 7.9, 6.4  # of a character at 13 and 11 pixels

COLOURS: Mapping[str, str] = MappingProxyType(
    {"actor": "#2563ab", "critic": "#b4571a", "reference": "#6b4fa0", "reward": "#2e7d4f"}
)
OTHER_COLOURS = ("#9b2c5e", "#1b7c85", "#7a6a10", "#4a5bd0")
GREY = "#5b6570"

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


def to_svg(graph: nx.DiGraph) -> str:
    """A self-contained SVG document; equal graphs give equal text."""
    layout = _lay_out(graph)
    colours = _colours(graph)
    shapes: list[str] = []
    for lane in layout.lanes:
        for net in lane.nets:
            colour = colours.get(net.source, GREY)
            shapes += _net(net, lane, layout, colour)
    for loop in layout.loops:
        shapes += _loop(loop, layout, mfc_of(graph, loop.train).role, colours[loop.train])
    for item, box in layout.boxes.items():
        if isinstance(item, str):
            shapes += _box(item, box, graph, colours.get(item, GREY))
    return _document(shapes, layout)


# ── measuring ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def _lay_out(graph: nx.DiGraph) -> Layout:
    versions = sorted((u, v, edge["steps"]) for u, v, edge in graph.edges(data=True) if edge["kind"] == "version")
    lanes = [_lane(graph, source, versions) for source in DATA_SETS if calls_on(graph, source)]
    loops = [loop for above in (True, False) for loop in _loops(lanes, versions, above)]
    tracks = {above: sum(loop.above == above for loop in loops) for above in (True, False)}
    widths = [[max((_width(graph, item) for item in column), default=0.0) for column in lane.columns] for lane in lanes]
    fans = [
        [
            max((_label_width(net) for item in column for net in lane.out_of(item)), default=0.0)
            for column in lane.columns
        ]
        for lane in lanes
    ]
    column_widths, fan_widths = _widest(widths), _widest(fans)
    pitches = [width + fan + FAN for width, fan in zip(column_widths, fan_widths, strict=True)]
    lefts = list(accumulate(pitches, initial=float(MARGIN)))
    boxes: dict[Item, Box] = {}
    top = float(MARGIN + tracks[True] * TRACK)
    for lane in lanes:
        heights = {item: _height(lane, item) for column in lane.columns for item in column}
        tallest = max(_stacked(heights, column) for column in lane.columns)
        for where, column in enumerate(lane.columns):
            y = top + (tallest - _stacked(heights, column)) / 2
            for item in column:
                width = column_widths[where]
                boxes[item] = Box(lefts[where] + width / 2, y + heights[item] / 2, width, heights[item])
                y += heights[item] + GAP
        top += tallest + tracks[False] * TRACK + 2 * GAP
    turns = [left + width + fan for left, width, fan in zip(lefts, column_widths, fan_widths, strict=False)]
    return Layout(lanes, boxes, turns, loops)


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


def _width(graph: nx.DiGraph, item: Item) -> float:
    if isinstance(item, Passage):
        return 0.0
    return 2 * BOX_PADDING + max(len(item) * NAME_WIDTH, len(_note(graph, item)) * NOTE_WIDTH)


def _label_width(net: Net) -> float:
    return len(", ".join(net.keys)) * NOTE_WIDTH + 10


def _note(graph: nx.DiGraph, item: str) -> str:
    """The second line of a box."""
    if item not in graph:
        return ""
    mfc = mfc_of(graph, item)
    return f"{mfc.role} · {mfc.kind}"


def _colours(graph: nx.DiGraph) -> dict[str, str]:
    """Call → the colour of its role."""
    role_of = {call: mfc_of(graph, call).role for call in graph}
    others = sorted(set(role_of.values()) - COLOURS.keys())
    colours = {role: OTHER_COLOURS[i % len(OTHER_COLOURS)] for i, role in enumerate(others)} | dict(COLOURS)
    return {call: colours[role] for call, role in role_of.items()}


# ── drawing ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def _net(net: Net, lane: Lane, layout: Layout, colour: str) -> list[str]:
    """The keys beside the source, a line through every column that is passed, and a branch to every reader."""
    first, last = lane.column_of(net.source), max(map(lane.column_of, net.targets))
    start, y = layout.boxes[net.source].right, layout.port(net, lane)
    pieces = [f"M{_at((start, y))} H{layout.fans[first]:.1f}"]
    for column in range(first + 1, last):
        box = layout.boxes[Passage(net, column)]
        pieces.append(_curve(layout.last_stop(net, column, lane), (box.left, box.y)) + f" H{layout.fans[column]:.1f}")
    shapes = [_path(" ".join(pieces), colour)]
    for target in net.targets:
        end = (layout.boxes[target].left, layout.entry(net, target, lane))
        shapes.append(_path(_curve(layout.last_stop(net, lane.column_of(target), lane), end), colour, arrow=True))
    shapes.append(_text((start + 6, y - 4), ", ".join(net.keys), "key", colour))
    return shapes


def _loop(loop: Loop, layout: Layout, role: str, colour: str) -> list[str]:
    lane, sign = layout.lanes[0], -1 if loop.above else 1
    inside = [box for item, box in layout.boxes.items() if any(item in column for column in lane.columns)]
    edge = min(box.top for box in inside) if loop.above else max(box.bottom for box in inside)
    level = edge + sign * (loop.track + 0.8) * TRACK
    way = [*_leave(loop, layout, level), *reversed(_reach(loop, layout, level))]
    label = f"{role} parameters, " + {0: "same step", 1: "next step"}.get(loop.steps, f"{loop.steps} steps on")
    (turn, _), (back, _) = way[-3:-1]
    beside = (turn + 12 + len(label) * NOTE_WIDTH / 2, level + 4)
    place = ((turn + back) / 2, level - 5) if turn != back else beside
    return [_path(_rounded(way), colour, arrow=True, dashed=True), _text(place, label, "loop", colour)]


def _leave(loop: Loop, layout: Layout, level: float) -> list[Point]:
    """From the train_step to the level at which the loop runs."""
    box = layout.boxes[loop.train]
    if layout.lanes[0].is_outermost(loop.train, loop.above):
        x = box.x + loop.exit_shift
        return [(x, box.top if loop.above else box.bottom), (x, level)]
    x = box.right + 14 + 7 * loop.track
    return [(box.right, box.y), (x, box.y), (x, level)]


def _reach(loop: Loop, layout: Layout, level: float) -> list[Point]:
    """From the reader to that level."""
    box = layout.boxes[loop.reader]
    lane = next(lane for lane in layout.lanes if lane.holds(loop.reader))
    from_above = loop.above or lane is not layout.lanes[0]
    if lane.is_outermost(loop.reader, from_above):
        return [(box.x, box.top if from_above else box.bottom), (box.x, level)]
    x, y = box.left - 14 - 7 * loop.track, box.top + 8
    return [(box.left, y), (x, y), (x, level)]


def _box(name: str, box: Box, graph: nx.DiGraph, colour: str) -> list[str]:
    note = _note(graph, name)
    trains = name in graph and mfc_of(graph, name).kind == "train_step"
    radius = 8 if note else box.height / 2
    line = f'stroke-width="{2.6 if trains else 1.3}"'
    frame = f'x="{box.left:.1f}" y="{box.top:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="{radius:.1f}"'
    return [
        f'<rect {frame} fill="#ffffff"/>',
        f'<rect {frame} fill="{colour}" fill-opacity="0.09" stroke="{colour}" {line}/>',
        _text((box.x, box.y + (-3 if note else 4.5)), name, "name", colour),
        *([_text((box.x, box.y + 13), note, "note", GREY)] if note else []),
    ]


def _document(shapes: Sequence[str], layout: Layout) -> str:
    right = max((box.right for box in layout.boxes.values()), default=0.0)
    width = max(right + MARGIN + 8 * len(layout.loops), 520)
    bottom = max((box.bottom for box in layout.boxes.values()), default=0.0)
    below = sum(not loop.above for loop in layout.loops) if len(layout.lanes) == 1 else 0
    y = bottom + below * TRACK + LEGEND
    legend = [
        _path(f"M{_at((MARGIN, y))} h34", GREY, arrow=True),
        _text((MARGIN + 42, y + 4), "data", "legend", GREY),
        _path(f"M{_at((MARGIN + 92, y))} h34", GREY, arrow=True, dashed=True),
        _text((MARGIN + 134, y + 4), "parameters", "legend", GREY),
        f'<rect x="{MARGIN + 226}" y="{y - 7:.1f}" width="22" height="14" rx="4" fill="none" stroke="{GREY}" '
        'stroke-width="2.6"/>',
        _text((MARGIN + 256, y + 4), "changes parameters", "legend", GREY),
    ]
    size = f'width="{width:.0f}" height="{y + MARGIN:.0f}" viewBox="0 0 {width:.0f} {y + MARGIN:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<style>{_STYLE}</style>",
            f"<defs>{_arrowheads(sorted({*COLOURS.values(), *OTHER_COLOURS, GREY}))}</defs>",
            f'<rect width="{width:.0f}" height="{y + MARGIN:.0f}" rx="10" fill="#ffffff"/>',
            *shapes,
            *legend,
            "</svg>\n",
        ]
    )


_STYLE = (
    "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}"
    ".name{font-size:13px;font-weight:600;text-anchor:middle}"
    ".note{font-size:11px;text-anchor:middle}"
    ".key{font-size:11px}"
    ".loop{font-size:11px;font-style:italic;text-anchor:middle}"
    ".legend{font-size:11px}"
    ".key,.loop{paint-order:stroke;stroke:#ffffff;stroke-width:3px}"
)


def _path(way: str, colour: str, arrow: bool = False, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="6 4"' if dashed else ""
    head = f' marker-end="url(#arrow-{colour[1:]})"' if arrow else ""
    return f'<path d="{way}" fill="none" stroke="{colour}" stroke-width="1.4"{dashes}{head}/>'


def _arrowheads(colours: Iterable[str]) -> str:
    """One marker a colour: not every viewer lets a marker take its line's."""
    return "".join(
        f'<marker id="arrow-{colour[1:]}" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="8" markerHeight="8" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0.8L8 4L0 7.2z" fill="{colour}"/></marker>'
        for colour in colours
    )


def _text(place: Point, text: str, kind: str, colour: str) -> str:
    return f'<text x="{place[0]:.1f}" y="{place[1]:.1f}" class="{kind}" fill="{colour}">{escape(text)}</text>'


def _at(point: Point) -> str:
    return f"{point[0]:.1f} {point[1]:.1f}"


def _curve(start: Point, end: Point) -> str:
    """Leaves and arrives horizontally."""
    middle = (start[0] + end[0]) / 2
    return f"M{_at(start)} C{_at((middle, start[1]))} {_at((middle, end[1]))} {_at(end)}"


def _rounded(points: Sequence[Point]) -> str:
    """Straight pieces, horizontal and vertical, with rounded corners."""
    way = f"M{_at(points[0])}"
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        way += f" L{_at(_short_of(corner, before))} Q{_at(corner)} {_at(_short_of(corner, after))}"
    return f"{way} L{_at(points[-1])}"


def _short_of(corner: Point, other: Point) -> Point:
    """The point beside a corner, on the way to another point."""
    x, y = other[0] - corner[0], other[1] - corner[1]
    share = min(CORNER, (abs(x) + abs(y)) / 2) / (abs(x) + abs(y) or 1)
    return corner[0] + x * share, corner[1] + y * share

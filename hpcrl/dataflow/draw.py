"""A dataflow graph as SVG: data from left to right, parameters around it on dashed lines. Needs no other program.

Every line is an edge of the graph. "order" edges (a train_step after the reads of what it overwrites) are left out:
each runs beside a dashed line, the other way. `layout` decides where everything lies.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from xml.sax.saxutils import escape

import networkx as nx

from hpcrl.dataflow.graph import mfc_of
from hpcrl.dataflow.layers import Net, Passage
from hpcrl.dataflow.layout import MARGIN, NOTE_WIDTH, TRACK, Box, Lane, Layout, Loop, Point, label, lay_out, note

CORNER, LEGEND = 9, 44  # pixels

COLOURS: Mapping[str, str] = MappingProxyType(
    {"actor": "#2563ab", "critic": "#b4571a", "reference": "#6b4fa0", "reward": "#2e7d4f"}
)
OTHER_COLOURS = ("#9b2c5e", "#1b7c85", "#7a6a10", "#4a5bd0")
GREY = "#5b6570"


def to_svg(graph: nx.DiGraph) -> str:
    """A self-contained SVG document; equal graphs give equal text."""
    layout = lay_out(graph)
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


def _colours(graph: nx.DiGraph) -> dict[str, str]:
    """Call → the colour of its role."""
    role_of = {call: mfc_of(graph, call).role for call in graph}
    others = sorted(set(role_of.values()) - COLOURS.keys())
    colours = {role: OTHER_COLOURS[i % len(OTHER_COLOURS)] for i, role in enumerate(others)} | dict(COLOURS)
    return {call: colours[role] for call, role in role_of.items()}


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
    shapes.append(_text((start + 6, y - 4), label(net), "key", colour))
    return shapes


def _loop(loop: Loop, layout: Layout, role: str, colour: str) -> list[str]:
    lane, sign = layout.lanes[0], -1 if loop.above else 1
    inside = [box for item, box in layout.boxes.items() if any(item in column for column in lane.columns)]
    edge = min(box.top for box in inside) if loop.above else max(box.bottom for box in inside)
    level = edge + sign * (loop.track + 0.8) * TRACK
    leave, reach = _leave(loop, layout, level), _reach(loop, layout, level)
    text = f"{role} parameters, " + {0: "same step", 1: "next step"}.get(loop.steps, f"{loop.steps} steps on")
    turn, back = leave[-1][0], reach[-1][0]
    beside = (turn + 12 + len(text) * NOTE_WIDTH / 2, level + 4)
    place = ((turn + back) / 2, level - 5) if turn != back else beside
    way = _rounded([*leave, *reversed(reach)])
    return [_path(way, colour, arrow=True, dashed=True), _text(place, text, "loop", colour)]


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
    second = note(graph, name)
    trains = name in graph and mfc_of(graph, name).kind == "train_step"
    radius = 8 if second else box.height / 2
    line = f'stroke-width="{2.6 if trains else 1.3}"'
    frame = f'x="{box.left:.1f}" y="{box.top:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="{radius:.1f}"'
    return [
        f'<rect {frame} fill="#ffffff"/>',
        f'<rect {frame} fill="{colour}" fill-opacity="0.09" stroke="{colour}" {line}/>',
        _text((box.x, box.y + (-3 if second else 4.5)), name, "name", colour),
        *([_text((box.x, box.y + 13), second, "note", GREY)] if second else []),
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

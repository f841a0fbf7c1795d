"""The curves of a run as PNG and SVG. Needs matplotlib (the extra `plot`), which is imported when a plot is made."""

import io
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import DataError, MissingExtraError
from hpcrl.foreign import plain
from hpcrl.inspect.lines import Row
from hpcrl.inspect.metrics import SHARE_RIGHT, figures, series, share_right, with_logged
from hpcrl.inspect.reader import RunReader

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 3
PANEL_INCHES = (4.4, 2.9)
PAGE_INCHES = (3.5, 2.2)
"""Of a panel on a page, which makes it as wide as there is room: letters of 8 points are legible on a phone."""
SMOOTHED_FROM = 30
"""Points from which a curve is drawn thin, with a running mean over it."""
THIN_ALPHA = 0.7
"""Of a curve with a running mean over it: it can be told from the page's background in both themes."""
MARKED_TO = 60
"""Points of a sparse curve up to which each is marked."""
LEAST_RANGE = 1e-6
"""Of an axis, of its values: less is a constant and what it was rounded by."""
COLOURS = ("#0b6e99", "#d9730d", "#0f7b6c", "#6940a5", "#b59000")
"""Of the curves of a panel, which has no more than these."""
QUIET = "#8a8a86"
CHANGED = "#ad1a72"
LABEL_WIDTH = 0.25
"""Of an axis: what the longest label of a change takes on a page."""
MOST_POINTS = 1000
"""Of a curve: more than a panel has pixels."""
PAGE_COLOURS = {
    "#37352f": "ink",
    "#5f5e5b": "quiet",
    "#8a8a86": "quiet",
    "#d3d1cb": "line",
    "#eceae6": "line",
    "#0b6e99": "c0",
    "#d9730d": "c1",
    "#0f7b6c": "c2",
    "#ad1a72": "c3",
    "#6940a5": "c4",
    "#b59000": "c5",
    "#000000": "ink",
}
"""What a panel is drawn in → the page's name for it, which is another colour in the dark."""


@dataclass(frozen=True)
class Curve:
    """One metric in a panel. A sparse one (an evaluation) is drawn with its points."""

    key: str
    label: str = ""
    sparse: bool = False


@dataclass(frozen=True)
class Drawn:
    """A panel for a page: an <svg> and, for each of its curves: label, colour by name, newest step, its value."""

    title: str
    svg: str
    legend: tuple[tuple[str, str, int, float], ...]


@dataclass(frozen=True)
class Panel:
    """What belongs together on one pair of axes."""

    title: str
    curves: tuple[Curve, ...]


COMPONENT = "rew_inf/reward_"
PANELS = (
    Panel(
        "Reward",
        (
            Curve("rew_inf/reward", "training, sampled"),
            Curve("eval_rew/reward", "held out, greedy", True),
            Curve(SHARE_RIGHT, share_right(1.0), True),
        ),
    ),
    Panel("KL to the reference, per token", (Curve("actor_train/kl"),)),
    Panel("Response length, tokens", (Curve("actor_gen/response_length"),)),
    Panel("Loss of the actor", (Curve("actor_train/loss", "training"), Curve("eval_loss/loss", "held out", True))),
    Panel("Value loss", (Curve("critic_train/loss"),)),
    Panel("Entropy, nats per token", (Curve("actor_train/entropy"),)),
)


def plot(run: RunDirectory) -> dict[str, bytes]:
    """curves.png and curves.svg: what is in them.

    Raises:
        MissingExtraError: matplotlib is not installed.
        DataError: no step is finished.
    """
    with _matplotlib():
        return _plot(run)


def _plot(run: RunDirectory) -> dict[str, bytes]:
    from matplotlib.figure import Figure

    reader = RunReader(run)
    rows = reader.rows()
    panels = _panels(rows, reader.right_at)
    if not panels:
        raise DataError(f"{run.root} has no finished step yet, so there is nothing to plot.")
    lines = -(-len(panels) // COLUMNS)
    columns = min(COLUMNS, len(panels))
    figure = Figure(figsize=(columns * PANEL_INCHES[0], lines * PANEL_INCHES[1] + 0.5), layout="constrained")
    name = run.read_run().experiment["name"]
    title = run.root.name if run.root.name.startswith(name) else f"{name} · {run.root.name}"
    figure.suptitle(title, fontsize=11, x=0.01, ha="left", color="#37352f")
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(lines, columns, number + 1)
        _draw(axes, panel, rows, reader.restarts(), reader.seen.settings)
        axes.set_title(plain(panel.title), fontsize=9.5, loc="left", color="#37352f")
        if len(panel.curves) > 1:
            axes.legend(fontsize=8, frameon=False, loc="lower right")
    made = {}
    for kind in ("png", "svg"):
        out = io.BytesIO()
        figure.savefig(out, format=kind, dpi=140)
        made[f"curves.{kind}"] = out.getvalue()
    return made


def panels_of_a_page(reader: RunReader) -> list[Drawn]:
    """Panels whose colours are the page's: ink, quiet, line and c0 to c3. Titles and legends are left to the page.

    Raises MissingExtraError where matplotlib is not installed.
    """
    rows, found = reader.rows(), []
    for panel in _panels(rows, reader.right_at):
        # Names within a panel are made of the salt, and differ from those of other panels of the page.
        with _matplotlib(**{"svg.fonttype": "none", "svg.hashsalt": panel.title}):
            found.append(_drawn(panel, rows, reader))
    return found


def _drawn(panel: Panel, rows: Sequence[Row], reader: RunReader) -> Drawn:
    from matplotlib.figure import Figure

    figure, out = Figure(figsize=PAGE_INCHES, layout="constrained"), io.StringIO()
    axes = figure.add_subplot()
    _draw(axes, panel, rows, reader.restarts(), reader.seen.settings)
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    legend = [
        (curve.label, PAGE_COLOURS[colour], measured[0][-1], measured[1][-1])
        for curve, colour in zip(panel.curves, COLOURS, strict=False)
        if (measured := series(rows, curve.key))[0]
    ]
    return Drawn(panel.title, _in_colours_of_the_page(out.getvalue()), tuple(legend))


@contextmanager
def _matplotlib(**settings: Any) -> Iterator[None]:
    """What is drawn within takes dollars in names of metrics as dollars."""
    try:
        import matplotlib.figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot") from error
    own: Any = {"text.parse_math": False, "svg.hashsalt": "hpcrl", **settings}
    with matplotlib.rc_context(own):
        yield


def _in_colours_of_the_page(svg: str) -> str:
    text = re.sub(r' id="[A-Za-z.]+_[0-9]+"', "", svg[svg.index("<svg") :])  # nobody refers to these
    for colour, name in PAGE_COLOURS.items():
        text = text.replace(colour, f"var(--{name})")
    head, rest = text[: text.index(">")], text[text.index(">") :]
    return re.sub(r' (width|height)="[^"]*"', "", head) + rest


def thinned(steps: Sequence[int], values: Sequence[float]) -> tuple[list[int], list[float]]:
    """At most `MOST_POINTS` of them, the least and the largest of each stretch among them, and both ends."""
    if len(steps) <= MOST_POINTS:
        return list(steps), list(values)
    stretches = MOST_POINTS // 2 - 1
    kept = {0, len(steps) - 1}
    for number in range(stretches):
        first, last = len(steps) * number // stretches, len(steps) * (number + 1) // stretches
        kept |= {min(range(first, last), key=values.__getitem__), max(range(first, last), key=values.__getitem__)}
    order = sorted(kept)
    return [steps[i] for i in order], [values[i] for i in order]


def _panels(rows: Sequence[Row], right_at: float) -> list[Panel]:
    """The panels that these rows have values for; of an unknown graph, one per metric."""
    measured = {key for row in rows for key in row}
    known = [panel for panel in PANELS if any(curve.key in measured for curve in panel.curves)]
    if known:
        known[1:1] = _components(measured) if known[0] is PANELS[0] else ()
        panels = [replace(panel, curves=tuple(_told(curve, right_at) for curve in panel.curves)) for panel in known]
        return panels + [Panel(figure.label, (Curve(figure.key),)) for figure in with_logged((), rows)]
    return [Panel(figure.label, (Curve(figure.key),)) for figure in with_logged(figures(rows, right_at), rows)]


def _components(measured: Collection[str]) -> list[Panel]:
    """What a reward is made up of, where it has several components."""
    names = sorted(key for key in measured if key.startswith(COMPONENT))[: len(COLOURS)]
    return (
        [Panel("Reward components", tuple(Curve(key, key.removeprefix(COMPONENT)) for key in names))] if names else []
    )


def _told(curve: Curve, right_at: float) -> Curve:
    return replace(curve, label=share_right(right_at)) if curve.key == SHARE_RIGHT else curve


def _draw(
    axes: "Axes",
    panel: Panel,
    rows: Sequence[Row],
    restarts: Sequence[int],
    changes: Sequence[tuple[int, int]] = (),
) -> None:
    for curve, colour in zip(panel.curves, COLOURS, strict=False):
        steps, values = series(rows, curve.key)
        if steps:
            _draw_curve(axes, curve, steps, values, colour)
    changed = {step for step, _ in changes}
    for number, step in enumerate(step for step in restarts if step not in changed):
        label = "restart" if number == 0 else None
        axes.axvline(step - 0.5, color=QUIET, linewidth=0.8, linestyle=(0, (2, 3)), zorder=0, label=label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#d3d1cb")
    axes.tick_params(labelsize=8, color="#d3d1cb", labelcolor="#5f5e5b")
    axes.grid(axis="y", color="#eceae6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("step", fontsize=8, color="#5f5e5b")
    axes.margins(x=0.02)
    axes.ticklabel_format(useOffset=False)
    low, high = axes.get_ylim()
    if high - low < LEAST_RANGE * max(abs(low), abs(high)):
        axes.set_ylim(min(0.95 * low, 1.05 * low), max(0.95 * high, 1.05 * high))
    _mark_settings(axes, changes)


def _mark_settings(axes: "Axes", changes: Sequence[tuple[int, int]]) -> None:
    """A line where other settings begin to count, with the number of their version (RUN/settings)."""
    low, high = axes.get_xlim()
    for step, _ in changes:
        axes.axvline(step - 0.5, color=CHANGED, linewidth=0.9, zorder=0)
    for step, said in labels_apart(changes, LABEL_WIDTH * (high - low)):
        place, system = (step - 0.5, 1.0), axes.get_xaxis_transform()
        axes.text(*place, said, transform=system, fontsize=7, color=CHANGED, ha="left", va="bottom")


def labels_apart(changes: Sequence[tuple[int, int]], width: float) -> list[tuple[int, str]]:
    """At which step a label stands, and what it says: those with less than a width of steps between are one."""
    found: list[tuple[int, list[int]]] = []
    for step, version in changes:
        if found and step - found[-1][0] < width:
            found[-1][1].append(version)
        else:
            found.append((step, [version]))
    return [(step, f"settings {'–'.join(map(str, dict.fromkeys((it[0], it[-1]))))}") for step, it in found]


def _draw_curve(axes: "Axes", curve: Curve, steps: Sequence[int], values: Sequence[float], colour: str) -> None:
    style: dict[str, Any] = {"color": colour, "label": plain(curve.label) or None}
    if curve.sparse:
        marker = "o" if len(values) <= MARKED_TO else None
        axes.plot(*thinned(steps, values), marker=marker, markersize=3.5, linewidth=1.4, zorder=3, **style)
    elif len(values) < SMOOTHED_FROM:
        axes.plot(steps, values, linewidth=1.6, **style)
    else:
        means = running_mean(np.array(values), smoothed_over(len(values)))
        axes.plot(*thinned(steps, values), linewidth=0.8, alpha=THIN_ALPHA, color=colour)
        axes.plot(*thinned(steps, means.tolist()), linewidth=2.0, **style)


def smoothed_over(count: int) -> int:
    """How many points of so many a running mean is over; 1 where there are too few for one."""
    return 1 if count < SMOOTHED_FROM else max(5, count // 30)


def running_mean(values: np.ndarray, width: int) -> np.ndarray:
    """The mean over a centred window, which is narrower at the ends."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    low, high = np.maximum(0, index - width // 2), np.minimum(len(values), index + width // 2 + 1)
    return (total[high] - total[low]) / (high - low)

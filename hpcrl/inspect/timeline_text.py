"""A timeline as a terminal shows it: a line a worker, a letter a call, in 80 columns."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from rich.console import Group, RenderableType
from rich.text import Text

from hpcrl.foreign import plain
from hpcrl.inspect.tables import WAITED_FOR, plain_table
from hpcrl.inspect.views.timeline import AttemptTime, Lane, Link, StepTime, Timeline
from hpcrl.inspect.words import counted

WIDTH = 80
COLUMNS = 56
"""Of time."""
GAP, CROWD = "·", "#"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
BESIDE: Mapping[str, str] = MappingProxyType({"spill": "w", "release": "r", "save": "s"})
"""Small letters of what workers do beside their calls."""
STYLES = ("cyan", "magenta", "green", "yellow", "blue", "red", "bright_cyan", "bright_magenta")
LANES_SHOWN = 64
STEPS_SHOWN = 20
UNFINISHED_SHOWN = 4
LEAST_SHARE = 0.02
"""Of a step's time: what it waited for less long is not named."""


def name_of(lane: Lane) -> str:
    return "unknown" if lane.worker is None else f"worker-{lane.worker}"


def names_of(view: Timeline) -> list[str]:
    """The calls and moves in it, as they come."""
    found = (it for attempt in view.attempts for lane in attempt.lanes for it in (*lane.segments, *lane.unfinished))
    return list(dict.fromkeys(it.name for it in sorted(found, key=lambda it: it.begin_s)))


def render_timeline(view: Timeline) -> RenderableType:
    names = names_of(view)
    letters = {name: LETTERS[number] if number < len(LETTERS) else CROWD for number, name in enumerate(names)}
    styles = {name: STYLES[number % len(STYLES)] for number, name in enumerate(names)}
    parts: list[RenderableType] = []
    for attempt in view.attempts:
        parts += [*_attempt(attempt, letters, styles), Text()]
    kinds = {it.kind for attempt in view.attempts for lane in attempt.lanes for it in lane.beside}
    beside = {BESIDE[kind]: kind for kind in sorted(kinds)}
    notes = ["Seconds are counted from the beginning of the attempt.", *notes_of(view)]
    return Group(*parts, _legend(letters, styles, beside), *(Text(plain(it), style="dim") for it in notes))


def notes_of(view: Timeline) -> list[str]:
    """What it lacks."""
    said = []
    if view.missing:
        said.append(f"no row of costs was kept of step {', '.join(map(str, view.missing))}")
    if view.unplaced:
        attempts = ", ".join(map(str, view.unplaced))
        said.append(
            f"Which workers had which part is not written down of attempt {attempts}: of each part, only the slowest "
            "worker is shown."
        )
    if any(later.open_s < step.close_s for it in view.attempts for step, later in pairwise(it.steps)):
        said.append("Steps overlap: a step may wait for calls of the one before it. Its time is how long it was open.")
    for attempt in view.attempts:
        left = {(it.step, it.name, it.part): it for lane in attempt.lanes for it in lane.unfinished}
        what = ", ".join(f"{it.name} of step {it.step}, part {it.part}" for it in [*left.values()][:UNFINISHED_SHOWN])
        more = f" and {len(left) - UNFINISHED_SHOWN} more" if len(left) > UNFINISHED_SHOWN else ""
        said += [f"Under way as attempt {attempt.attempt} ended: {what}{more}"] if left else []
    return said


def _attempt(view: AttemptTime, letters: Mapping[str, str], styles: Mapping[str, str]) -> list[RenderableType]:
    span_s = view.end_s - view.begin_s
    steps = f"{view.steps[0].step}–{view.steps[-1].step}" if len(view.steps) > 1 else f"{view.steps[0].step}"
    title = f"attempt {view.attempt}, step{'s' * (len(view.steps) > 1)} {steps}"
    head = f"{view.begin_s:.2f} s to {view.end_s:.2f} s, a column is {_width(span_s / COLUMNS)}"
    parts: list[RenderableType] = [Text.assemble((title, "bold"), f": {head}"), _ruler(view)]
    parts += [line for lane in view.lanes[:LANES_SHOWN] for line in _lines(lane, view, letters, styles)]
    if more := len(view.lanes) - LANES_SHOWN:
        parts += [Text(f"{counted(more, 'more worker')}: --html or --perfetto", style="dim")] if more > 0 else []
    return [*parts, Text(), _critical_paths(view.steps)]


def _width(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _ruler(view: AttemptTime) -> Text:
    """The number of a step where it closes."""
    line = [" "] * COLUMNS
    free = 0
    for step in view.steps:
        name = f"{step.step}|"
        end = min(COLUMNS, _column(step.close_s, view) + 1)
        if end - len(name) >= free:
            line[end - len(name) : end] = name
            free = end
    return Text(f"{'closed':<11}{''.join(line)}  idle", style="dim")


def _lines(lane: Lane, view: AttemptTime, letters: Mapping[str, str], styles: Mapping[str, str]) -> Iterator[Text]:
    """A worker's, and below it what it did beside its calls, if anything."""
    yield _line(lane, view, letters, styles)
    if lane.beside:
        cells = [GAP] * COLUMNS
        for it in sorted(lane.beside, key=lambda it: [*BESIDE].index(it.kind)):  # what is rarer is drawn last
            for column in range(max(0, _column(it.begin_s, view)), min(COLUMNS - 1, _column(it.end_s, view)) + 1):
                cells[column] = BESIDE[it.kind]
        yield Text(f"{'  beside':<11}{''.join(cells)}", style="dim")


def _line(lane: Lane, view: AttemptTime, letters: Mapping[str, str], styles: Mapping[str, str]) -> Text:
    """In each column what takes most of its time."""
    width_s = (view.end_s - view.begin_s) / COLUMNS or 1.0
    most = [(0.0, "")] * COLUMNS
    for it in (*lane.segments, *lane.unfinished):
        for column in range(max(0, _column(it.begin_s, view)), min(COLUMNS - 1, _column(it.end_s, view)) + 1):
            begin_s = view.begin_s + column * width_s
            share_s = min(it.end_s, begin_s + width_s) - max(it.begin_s, begin_s)
            most[column] = max(most[column], (share_s, it.name))
    name = name_of(lane)
    cells = [(letters[call], styles[call]) if call else (GAP, "dim") for _, call in most]
    return Text.assemble(f"{name:<11}", *cells, f"{lane.idle:>6.0%}")


def _column(at_s: float, view: AttemptTime) -> int:
    return int((at_s - view.begin_s) / ((view.end_s - view.begin_s) or 1.0) * COLUMNS)


def _legend(letters: Mapping[str, str], styles: Mapping[str, str], beside: Mapping[str, str]) -> Text:
    """In lines that a terminal of 80 columns does not break."""
    text, used = Text(), 0
    calls = [(letters[it], styles[it], plain(it)) for it in letters]
    for letter, style, name in [
        *calls,
        *((letter, "dim", kind) for letter, kind in beside.items()),
        (GAP, "dim", "nothing"),
    ]:
        width = len(name) + 4
        if used and used + width > WIDTH:
            text.append("\n")
            used = 0
        text.append(letter, style).append(f" {name}  ")
        used += width
    return text


def _critical_paths(steps: Sequence[StepTime]) -> RenderableType:
    table = plain_table("step", "time", "idle", WAITED_FOR)
    table.columns[-1].justify, table.columns[-1].no_wrap = "left", False
    for step in steps[-STEPS_SHOWN:]:
        idle = sum(step.idle.values()) / len(step.idle) if step.idle else 0.0
        table.add_row(str(step.step), f"{step.close_s - step.open_s:.2f} s", f"{idle:.0%}", Text(plain(path_of(step))))
    return table


def _link(link: Link, step: StepTime) -> str:
    """With its step, where that is another one."""
    return link.name if link.step == step.step or "@" in link.name else f"{link.name} of step {link.step}"


def path_of(step: StepTime) -> str:
    """Its critical path by call, the longest first, and the gaps in it; what took hardly any time is left out."""
    total = (step.close_s - step.open_s) or 1.0
    spent: dict[str, float] = defaultdict(float)
    for link in step.critical:
        spent[_link(link, step)] += link.seconds / total
    shares = sorted(((name, share) for name, share in spent.items() if share >= LEAST_SHARE), key=lambda it: -it[1])
    gaps = sum(link.waited_s for link in step.critical) + step.after_s
    return ", ".join(f"{name} {share:.0%}" for name, share in [*shares, ("between calls", gaps / total)])

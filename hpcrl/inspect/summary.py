"""What is printed when a run has ended: what it reached, what it cost, where everything is, and what to try next."""

from collections.abc import Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpcrl.durable.history import read_history
from hpcrl.durable.means import over_all
from hpcrl.durable.origin import forked_from
from hpcrl.durable.records import Verdict
from hpcrl.durable.rundir import RunDirectory
from hpcrl.foreign import plain
from hpcrl.inspect.failure import first_failure
from hpcrl.inspect.lines import Row
from hpcrl.inspect.metrics import ACCURACY, ACCURACY_IS, figures, series
from hpcrl.inspect.view import RunView, duration, quantity

END_ROWS = 10
"""Steps over which the first and last value of a metric are taken, where it is measured in every step."""


def print_summary(run: RunDirectory, console: Console | None = None) -> None:
    """Print the summary of a run that has ended, or of what there is of it."""
    (console or Console(highlight=False)).print(render_summary(run), soft_wrap=True)


def render_summary(run: RunDirectory) -> RenderableType:
    view = RunView(run)
    attempt = run.newest_attempt()
    verdict = run.newest_verdict()
    parts: list[RenderableType] = [Text(), _title(run, verdict)]
    if view.rows:
        parts += [Text(), _figures(view.rows)]
        if any(figure.label == ACCURACY for figure in figures(view.rows)):
            parts += [Text(ACCURACY_IS, style="dim")]
    if means := over_all(line.event for line in read_history(run).lines if line.event is not None):
        parts += [Text(), _over_all(means)]
    if view.costs():
        parts += [Text(), _costs(view)]
    parts += [Text(), _facts(run, view)]
    failure = first_failure(run, attempt) if verdict is not None and verdict.state == "failed" else None
    if failure is not None:
        parts += [Text(), Text("first failure", style="bold red"), Text(plain(failure.render()))]
    return Group(*parts, Text(), _next(run, verdict))


def _title(run: RunDirectory, verdict: Verdict | None) -> RenderableType:
    state = "no verdict" if verdict is None else verdict.state
    style = "bold green" if state == "done" else "bold red" if state == "failed" else "bold yellow"
    reason = "" if verdict is None else f" · {verdict.reason}"
    return Text.assemble((plain(run.root.name), "bold"), " · ", (state, style), plain(reason))


def _figures(rows: Sequence[Row]) -> RenderableType:
    """Where each metric began and ended. A metric of every step is averaged over a few, an evaluation is not."""
    table = _table(("metric", "left"), ("first", "right"), ("last", "right"), ("best", "right"), ("steps", "right"))
    for figure in figures(rows):
        steps, values = series(rows, figure.key)
        if not values:
            continue
        width = min(END_ROWS, max(1, len(values) // 2)) if len(values) > len(rows) // 2 else 1
        first, newest = sum(values[:width]) / width, sum(values[-width:]) / width
        best = figure.show(max(values)) if figure.label in ("reward", "held-out reward", ACCURACY) else ""
        spread = f"{steps[0]}–{steps[-1]}"
        table.add_row(Text(plain(figure.label)), figure.show(first), figure.show(newest), best, spread)
    return table


def _over_all(means: Mapping[str, float]) -> RenderableType:
    """Of a run that trains nothing: each statistic over all steps."""
    table = _table(("over all steps", "left"), ("mean", "right"))
    for name, mean in means.items():
        table.add_row(Text(plain(name)), f"{mean:.6g}")
    return table


def _costs(view: RunView) -> RenderableType:
    """The time of the workers by call."""
    costs = sorted(view.costs().items(), key=lambda item: -item[1].seconds)
    total = sum(cost.seconds for _, cost in costs) or 1.0
    table = _table(("call", "left"), ("share", "right"), ("a part", "right"), ("parts", "right"))
    for call, cost in costs:
        each = cost.seconds / max(1, cost.parts)
        table.add_row(Text(plain(call)), f"{cost.seconds / total:.0%}", f"{each:.3f} s", str(cost.parts))
    return table


def _facts(run: RunDirectory, view: RunView) -> RenderableType:
    control, origin = run.configuration()["control"], forked_from(run)
    steps = view.length(control["steps"], control["epochs"])
    facts = {
        "steps": str(view.step) + ("" if steps is None else f" of {steps}"),
        "time": f"{duration(view.seconds)}{_speed(view)}",
        "restarts": str(max(0, len(view.activities) - (1 if origin is None else 2))),
        "run directory": str(run.root),
    }
    if origin is not None:
        facts["forked from"] = str(origin)
    for role in sorted(run.files.listing(run.exports)) if run.exports.is_dir() else ():
        exports = sorted(name for name in run.files.listing(run.exports / role) if not name.startswith("."))
        if exports:
            facts[f"{role}, exported"] = str(run.exports / role / exports[-1])
    if files := [name for name in run.files.listing(run.samples) if not name.startswith(".")]:
        facts["samples"] = f"{run.samples}, {len(files)} file{'s' if len(files) > 1 else ''}, a line each"
    width = max(map(len, facts)) + 2
    return Text(plain("\n".join(f"{name:<{width}}{fact}" for name, fact in facts.items())))


def _speed(view: RunView) -> str:
    """Generated tokens and training samples per second over all that the attempts took, starts and evaluations too."""
    if view.seconds <= 0:
        return ""
    steps = [step for activity in view.activities.values() for step in activity.seen.values()]
    tokens, samples = sum(step.generated for step in steps), sum(step.samples for step in steps)
    generated = f", {quantity(tokens / view.seconds)} generated tokens/s" if tokens else ""
    return f", {quantity(samples / view.seconds)} samples/s{generated}"


def _next(run: RunDirectory, verdict: Verdict | None) -> RenderableType:
    root = run.root
    hints = {f"hpcrl inspect {root} --plot": "its curves", f"hpcrl logs {root}": "what every process did, by time"}
    if verdict is None or verdict.state != "done":
        when = "when the cause is gone, " if verdict is not None and verdict.state == "failed" else ""
        hints = {f"hpcrl resume {root}": f"{when}resume from the last finished call"} | hints
    width = max(map(len, hints)) + 2
    lines = [f"  {command:<{width}}{what}" for command, what in hints.items()]
    return Text(plain("\n".join(["what to try next", *lines])), style="dim")


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name, justify in columns:
        table.add_column(name, justify="right" if justify == "right" else "left", no_wrap=True)
    return table

"""Views as a terminal shows them, and their tables as CSV. Computes nothing that a view does not have."""

import csv
import io
import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from rich.console import Console, Group, RenderableType
from rich.text import Text

from hpcrl.foreign import LONGEST, plain
from hpcrl.inspect.audit_text import render_audit
from hpcrl.inspect.cause_text import cause_lines
from hpcrl.inspect.diff_text import render_diff
from hpcrl.inspect.evaluation_table import evaluation_table
from hpcrl.inspect.settings_text import render_settings
from hpcrl.inspect.tables import shown
from hpcrl.inspect.timeline_text import render_timeline
from hpcrl.inspect.view_tables import (
    attempts_table,
    calls_table,
    courses_table,
    exclude_advice,
    exports_table,
    facts_of,
    ledger_table,
    memory_table,
    nodes_table,
    over_all_table,
    steps_table,
    stragglers_table,
    workers_table,
)
from hpcrl.inspect.views.audit import Audit
from hpcrl.inspect.views.diff import Diff
from hpcrl.inspect.views.evaluation import Evaluation
from hpcrl.inspect.views.exports import Exports
from hpcrl.inspect.views.memory import Memory
from hpcrl.inspect.views.resources import Resources
from hpcrl.inspect.views.settings import Settings
from hpcrl.inspect.views.steps import Step, Steps
from hpcrl.inspect.views.stragglers import Stragglers
from hpcrl.inspect.views.summary import Summary
from hpcrl.inspect.views.timeline import Timeline
from hpcrl.inspect.views.why import Why

WIDE = 400
WHOLE = 1 << 18
"""Characters of a cause with all frames."""


def show(view: Any, console: Console | None = None, with_traceback: bool = False) -> None:
    """Where it goes to a file or a pipe, no column is cut."""
    console = console or Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    console.print(render(view, with_traceback), soft_wrap=True)


def render(view: Any, with_traceback: bool = False) -> RenderableType:
    """`with_traceback`: of what raised, hpcrl's frames too."""
    if isinstance(view, Why):
        return _why(view, with_traceback)
    renderer: Callable[[Any], RenderableType] = RENDERERS[type(view)]
    return renderer(view)


# ── summary ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def _summary(view: Summary) -> RenderableType:
    parts: list[RenderableType] = [Text(), _title(view)]
    if view.courses:
        parts += [Text(), shown(courses_table(view.courses))]
    if view.over_all:
        parts += [Text(), shown(over_all_table(view.over_all))]
    if view.calls:
        parts += [Text(), shown(calls_table(view.calls))]
    if view.elapsed.ledger.wall:
        parts += [Text(), shown(ledger_table(view.elapsed))]
    if len(view.elapsed.attempts) > 1 or any(it.verdict for it in view.elapsed.attempts):
        parts += [Text(), shown(attempts_table(view.elapsed.attempts))]
    parts += [Text(), _named(facts_of(view))]
    if view.cause is not None:
        parts += [Text(), Text(plain("\n".join(cause_lines(view.cause))))]
    return Group(*parts, Text(), _next(view.hints))


def _title(view: Summary) -> RenderableType:
    state = view.state or "no verdict"
    style = "bold green" if state == "done" else "bold red" if state == "failed" else "bold yellow"
    reason = f" · {view.reason}" if view.reason and view.cause is None else ""
    return Text.assemble((plain(view.name), "bold"), " · ", (state, style), plain(reason))


def _next(hints: Mapping[str, str]) -> RenderableType:
    width = max(map(len, hints)) + 2
    lines = [f"  {command:<{width}}{what}" for command, what in hints.items()]
    return Text(plain("\n".join(["what to try next", *lines])), style="dim")


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def _stragglers(view: Stragglers) -> RenderableType:
    if not view.workers:
        return Text(
            "No worker was waited for: no part of a call took more than a twentieth longer than the median part."
        )
    advice = exclude_advice(view)
    return Group(shown(stragglers_table(view)), *([Text(), Text(plain(advice), style="yellow")] if advice else []))


def _memory(view: Memory) -> RenderableType:
    return shown(memory_table(view)) if view.calls else Text("Nothing has been measured yet: no step has closed.")


def _resources(view: Resources) -> RenderableType:
    if not view.nodes:
        return Text("No agent has looked at its node yet.")
    return Group(shown(nodes_table(view)), Text(), shown(workers_table(view)))


# ── why ───────────────────────────────────────────────────────────────────────────────────────────────────────────────
def _why(view: Why, traceback: bool) -> RenderableType:
    if not view.causes:
        return Text("No attempt ended early.")
    parts: list[RenderableType] = []
    for cause in view.causes:
        title = "start" if cause.attempt is None else f"attempt {cause.attempt}"
        later = (
            f", the run went on in attempt {cause.attempt + 1}" if cause.continued and cause.attempt is not None else ""
        )
        text = "\n".join(cause_lines(cause, traceback))
        parts += [Text(), Text.assemble((title, "bold"), later), Text(plain(text, WHOLE if traceback else LONGEST))]
    return Group(*parts[1:])


# ── CSV ───────────────────────────────────────────────────────────────────────────────────────────────────────────────
def to_csv(view: Any) -> str | None:
    """A line per row of the view's table, after one of names; None of a view that is no table."""
    match view:
        case Steps():
            rows = [_flat(step) for step in view.steps]
        case Stragglers():
            rows = [msgspec.to_builtins(it) | {"attempts": len(it.attempts)} for it in view.workers]
            for row in rows:
                del row["by_call"]
        case Resources():
            rows = [msgspec.to_builtins(worker) for worker in view.workers]
        case Memory():
            rows = [msgspec.to_builtins(call) for call in view.calls]
        case _:
            return None
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _flat(step: Step) -> dict[str, Any]:
    row = msgspec.to_builtins(step)
    calls, metrics = row.pop("calls"), row.pop("metrics")
    times = {f"{call['name']}/seconds": call["seconds"] for call in calls}
    return row | times | {name: value for name, value in metrics.items() if name not in row}


def _named(facts: Mapping[str, str]) -> RenderableType:
    width = max(map(len, facts)) + 2
    return Text(plain("\n".join(f"{name:<{width}}{fact}" for name, fact in facts.items())))


# ── exports ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def _exports(view: Exports) -> RenderableType:
    parts: list[RenderableType] = []
    if view.exportable:
        parts.append(shown(exports_table(view)))
    for gap in view.missing:
        steps = f"step {gap.first}" if gap.first == gap.last else f"steps {gap.first}–{gap.last}"
        parts.append(Text(plain(f"{steps}: {gap.why}"), style="dim"))
    if view.not_trained:
        parts.append(Text(f"not trained: {', '.join(view.not_trained)}", style="dim"))
    return Group(*parts) if parts else Text("no step is closed yet")


RENDERERS: Mapping[type, Callable[[Any], RenderableType]] = {
    Summary: _summary,
    Steps: lambda view: shown(steps_table(view)),
    Stragglers: _stragglers,
    Memory: _memory,
    Exports: _exports,
    Evaluation: evaluation_table,
    Resources: _resources,
    Settings: render_settings,
    Timeline: render_timeline,
    Diff: render_diff,
    Audit: render_audit,
}

"""Views as a terminal shows them, and their tables as CSV. Computes nothing that a view does not have."""

import csv
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console, Group, RenderableType
from rich.text import Text

from hpcrl.foreign import LONGEST, plain
from hpcrl.inspect.audit_text import render_audit
from hpcrl.inspect.cause_text import cause_lines
from hpcrl.inspect.diff_text import render_diff
from hpcrl.inspect.evaluation_table import evaluation_table
from hpcrl.inspect.metrics import ACCURACY, ACCURACY_IS, Figure, figures
from hpcrl.inspect.tables import plain_table
from hpcrl.inspect.timeline_text import render_timeline
from hpcrl.inspect.views.attempts import Attempt, Ledger
from hpcrl.inspect.views.audit import Audit
from hpcrl.inspect.views.diff import Diff
from hpcrl.inspect.views.evaluation import Evaluation
from hpcrl.inspect.views.exports import Exports
from hpcrl.inspect.views.memory import Memory
from hpcrl.inspect.views.resources import Resources
from hpcrl.inspect.views.steps import Step, Steps
from hpcrl.inspect.views.stragglers import Stragglers
from hpcrl.inspect.views.summary import Course, Summary
from hpcrl.inspect.views.timeline import Timeline
from hpcrl.inspect.views.why import Why
from hpcrl.inspect.words import counted, duration, quantity
from hpcrl.placement.sizes import size_in_words

CALLS_SHOWN = 3
"""The costliest calls of a step."""
FIGURES_SHOWN = 3
LEAST_SHOWN = 0.005
"""Of wall time: smaller accounts are left out."""
ACCOUNTS = {
    "queue": "queue",
    "hold": "hold",
    "rendezvous": "rendezvous",
    "import": "imports",
    "load": "load",
    "useful": "useful",
    "recomputed": "recomputed",
    "idle": "idle",
}
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
        parts += [Text(), _courses(view.courses)]
        if any(course.label == ACCURACY for course in view.courses):
            parts += [Text(ACCURACY_IS, style="dim")]
    if view.over_all:
        parts += [Text(), _over_all(view.over_all)]
    if view.calls:
        parts += [Text(), _calls(view)]
    if view.elapsed.ledger.wall:
        parts += [Text(), _ledger(view.elapsed.ledger)]
    if len(view.elapsed.attempts) > 1 or any(it.verdict for it in view.elapsed.attempts):
        parts += [Text(), _attempts(view.elapsed.attempts)]
    parts += [Text(), _named(_facts(view))]
    if view.cause is not None:
        parts += [Text(), Text(plain("\n".join(cause_lines(view.cause))))]
    return Group(*parts, Text(), _next(view.hints))


def _title(view: Summary) -> RenderableType:
    state = view.state or "no verdict"
    style = "bold green" if state == "done" else "bold red" if state == "failed" else "bold yellow"
    reason = f" · {view.reason}" if view.reason and view.cause is None else ""
    return Text.assemble((plain(view.name), "bold"), " · ", (state, style), plain(reason))


def _courses(courses: Sequence[Course]) -> RenderableType:
    table = plain_table("metric", "first", "last", "best", "steps")
    for course in courses:
        figure = Figure(course.label, course.metric, course.decimals)
        best = "" if course.best is None else figure.show(course.best)
        spread = f"{course.first_step}–{course.last_step}"
        table.add_row(Text(plain(course.label)), figure.show(course.first), figure.show(course.last), best, spread)
    return table


def _over_all(means: Mapping[str, float]) -> RenderableType:
    table = plain_table("over all steps", "mean")
    for name, mean in means.items():
        table.add_row(Text(plain(name)), f"{mean:.6g}")
    return table


def _calls(view: Summary) -> RenderableType:
    """The time of the workers by call."""
    total = sum(call.workers_s for call in view.calls) or 1.0
    mfu = ("MFU",) if any(call.mfu is not None for call in view.calls) else ()
    table = plain_table("call", "share", "a part", "parts", *mfu)
    for call in view.calls:
        each = call.workers_s / max(1, call.parts)
        numbers = (f"{call.workers_s / total:.0%}", f"{each:.3f} s", str(call.parts))
        table.add_row(Text(plain(call.name)), *numbers, *(_share(call.mfu) for _ in mfu))
    return table


def _share(mfu: float | None) -> str:
    return "" if mfu is None else f"{mfu:.1%}"


def _ledger(view: Ledger) -> RenderableType:
    """The accounts that have something, and their sum."""
    table = plain_table("wall time", "", "share")
    accounts = {name: getattr(view, field) for name, field in ACCOUNTS.items()}
    for name, seconds in accounts.items():
        if seconds >= LEAST_SHOWN * view.wall:
            table.add_row(name, f"{seconds:.1f} s" if seconds < 60 else duration(seconds), f"{seconds / view.wall:.0%}")
    table.add_row("together", duration(view.wall), "")
    return table


def _attempts(view: Sequence[Attempt]) -> RenderableType:
    table = plain_table("attempt", "steps", "time", "lost work", "again after", "ended by")
    for it in view:
        steps = "" if it.first_step is None else f"{it.first_step}–{it.last_step}"
        replayed = f", {counted(it.replayed, 'step')} again" if it.replayed else ""
        lost = f"{it.lost_s:.1f} s{replayed}" if it.lost_s or it.replayed else ""
        again = "" if it.resumed_s is None else f"{it.resumed_s:.1f} s"
        ended = ", ".join(part for part in (it.verdict, it.who) if part)
        table.add_row(str(it.attempt), steps, duration(it.seconds), lost, again, Text(plain(ended)))
    return table


def _facts(view: Summary) -> dict[str, str]:
    speed, where = view.speed, view.where
    samples = "" if speed.samples_per_s is None else f", {quantity(speed.samples_per_s)} samples/s"
    tokens = "" if speed.tokens_per_s is None else f", {quantity(speed.tokens_per_s)} generated tokens/s"
    utilisation = speed.peak if speed.mfu is None else f"{speed.mfu:.1%} of {speed.peak}"
    facts = {
        "steps": str(view.step) + ("" if view.steps is None else f" of {view.steps}"),
        "time": f"{duration(speed.seconds)}{samples}{tokens}",
        "restarts": str(view.elapsed.restarts),
        "run directory": where.run_dir,
    }
    if utilisation:
        facts["MFU"] = utilisation
    if where.forked_from is not None:
        facts["forked from"] = where.forked_from
    facts |= {f"{role}, exported": path for role, path in where.exports.items()}
    if where.samples:
        steps = f"{where.samples} step{'s' if where.samples > 1 else ''}"
        facts["samples"] = f"of {steps}: hpcrl samples {where.run_dir}"
    if view.late:
        late = ", ".join(f"step {row.step} of attempt {row.attempt}" for row in view.late)
        facts["late"] = f"{late}: written after a newer attempt had taken over, and not counted"
    return facts


def _next(hints: Mapping[str, str]) -> RenderableType:
    width = max(map(len, hints)) + 2
    lines = [f"  {command:<{width}}{what}" for command, what in hints.items()]
    return Text(plain("\n".join(["what to try next", *lines])), style="dim")


# ── steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def _steps(view: Steps) -> RenderableType:
    shown = figures([step.metrics for step in view.steps])[:FIGURES_SHOWN]
    columns = ["step", "attempt", "time", "samples", "tokens", *(figure.label for figure in shown)]
    if has_mfu := any(step.mfu is not None for step in view.steps):
        columns.append("MFU")
    table = plain_table(*columns, "costliest calls")
    for step in view.steps:
        values = [figure.show(step.metrics.get(figure.key)) for figure in shown]
        numbers = (str(step.step), str(step.attempt), f"{step.seconds:.1f} s", str(step.samples), quantity(step.tokens))
        values += [_share(step.mfu)] * has_mfu
        table.add_row(*numbers, *values, Text(plain(_costliest(step))))
    notes = [f"MFU: of {view.peak}" if has_mfu else f"no MFU: {view.peak}"] if view.peak else []
    if view.missing:
        notes.append(f"no row of costs was kept of step {', '.join(map(str, view.missing))}")
    return Group(table, Text(), *(Text(plain(note), style="dim") for note in notes)) if notes else table


def _costliest(step: Step) -> str:
    """Its calls with most of the workers' time."""
    total = sum(call.workers_s for call in step.calls) or 1.0
    costliest = sorted(step.calls, key=lambda call: -call.workers_s)[:CALLS_SHOWN]
    return ", ".join(f"{call.name} {call.workers_s / total:.0%}" for call in costliest)


# ── stragglers ────────────────────────────────────────────────────────────────────────────────────────────────────────
def _stragglers(view: Stragglers) -> RenderableType:
    if not view.workers:
        return Text(
            "No worker was waited for: no part of a call took more than a twentieth longer than the median part."
        )
    table = plain_table("worker", "node", "waited for", "slowest of", "calls")
    for it in view.workers:
        calls = ", ".join(f"{call} {seconds:.1f} s" for call, seconds in list(it.by_call.items())[:CALLS_SHOWN])
        share = f"{it.slowest} of {it.calls}"
        node = Text(plain(it.node or "?"))
        table.add_row(f"worker-{it.worker}", node, f"{it.waited_s:.1f} s", share, Text(plain(calls)))
    if not view.exclude:
        return table
    advice = f"Others wait more than twice as long for these nodes as for the median node: --exclude={view.exclude}"
    return Group(table, Text(), Text(plain(advice), style="yellow"))


# ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def _memory(view: Memory) -> RenderableType:
    if not view.calls:
        return Text("Nothing has been measured yet: no step has closed.")
    table = plain_table("call", "expected", "measured")
    for call in view.calls:
        table.add_row(Text(plain(call.name)), _size(call.expected), _size(call.peak))
    note = f"Of the worker that used most in each call. Measured: the peak of {view.counted}."
    return Group(table, Text(), Text(note, style="dim"))


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


# ── resources ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def _resources(view: Resources) -> RenderableType:
    if not view.nodes:
        return Text("No agent has looked at its node yet.")
    nodes = plain_table("attempt", "node", "memory", "of", "left", "disk left", "slowest fsync")
    for it in view.nodes:
        left = "" if it.headroom is None else f"{it.headroom:.0%}"
        sizes = (_size(it.used), _size(it.limit), left, _size(it.free), f"{1000 * it.fsync_s:.1f} ms")
        nodes.add_row(str(it.attempt), Text(plain(it.host)), *sizes)
    workers = plain_table("attempt", "worker", "node", "memory", "CPUs busy", "GPU memory", "of", "GPU busy")
    for at in view.workers:
        cpus, busy = ("" if it is None else f"{it:.2f}" for it in (at.cpus, at.gpu_busy))
        sizes = (_size(at.rss), cpus, _size(at.gpu_used), _size(at.gpu_total), busy)
        workers.add_row(str(at.attempt), f"worker-{at.worker}", Text(plain(at.host)), *sizes)
    note = (
        "of: the limit. left: the share of it that was left. CPUs busy (a number) and GPU busy (a share) are means, "
        "all else is the worst that was seen. A worker's memory includes what it shares with others of its node."
    )
    return Group(nodes, Text(), workers, Text(), Text(note, style="dim"))


def _size(size: float | None) -> str:
    return "" if size is None else size_in_words(size)


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
        table = plain_table("step", "role", "type", "shards", "size", "written to")
        for it in view.exportable:
            table.add_row(
                str(it.step), it.role, it.dtype, str(it.shards), size_in_words(it.bytes), Text(plain(it.folder))
            )
        parts.append(table)
    for gap in view.missing:
        steps = f"step {gap.first}" if gap.first == gap.last else f"steps {gap.first}–{gap.last}"
        parts.append(Text(plain(f"{steps}: {gap.why}"), style="dim"))
    if view.not_trained:
        parts.append(Text(f"not trained: {', '.join(view.not_trained)}", style="dim"))
    return Group(*parts) if parts else Text("no step is closed yet")


RENDERERS: Mapping[type, Callable[[Any], RenderableType]] = {
    Summary: _summary,
    Steps: _steps,
    Stragglers: _stragglers,
    Memory: _memory,
    Exports: _exports,
    Evaluation: evaluation_table,
    Resources: _resources,
    Timeline: render_timeline,
    Diff: render_diff,
    Audit: render_audit,
}

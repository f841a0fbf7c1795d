"""What the tables of a run are called and say, wherever they are shown: each is made here once, of a view, and a
terminal and a page render it as it stands.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from hpcrl.inspect.metrics import Figure, figures
from hpcrl.inspect.views.attempts import Attempt
from hpcrl.inspect.views.exports import Exports
from hpcrl.inspect.views.memory import Memory
from hpcrl.inspect.views.resources import Resources
from hpcrl.inspect.views.steps import Step, Steps
from hpcrl.inspect.views.stragglers import LEAST_S, Straggler, Stragglers
from hpcrl.inspect.views.summary import Call, Course, Elapsed, Summary
from hpcrl.inspect.words import counted, duration, quantity
from hpcrl.placement.sizes import size_in_words

Cell = str | tuple[str, float]
"""A text; or a text and the number that it stands for, by which a column is sorted."""

CALLS_SHOWN = 3
"""The costliest calls of a step."""
FIGURES_SHOWN = 3
"""Of a step's metrics."""
ENDS_ARE = (
    "first, last: means over the first and over the last of these steps, where there are several; best: of one step"
)
HELD_OUT = "eval_"
HELD_OUT_IS = "held-out: of the evaluation's responses, greedy unless generation.evaluation.temperature is set"
LOST_WORK = "lost work: what was not finished, and the steps that the next attempt trained on again"
RESUMED_AFTER = "resumed after: until the next attempt began something new; the time in which nobody ran it, too"
LEAST_SHOWN = 0.005
"""Of wall time: smaller accounts are left out."""
ACCOUNTS = {
    "queue": ("queue", "jobs waited for nodes"),
    "hold": ("hold", "nodes waited for others, or the run was paused"),
    "rendezvous": ("rendezvous", "processes found each other"),
    "imports": ("import", "workers started"),
    "load": ("load", "models were loaded"),
    "useful": ("useful", "some call was computed for the first time"),
    "recomputed": ("recomputed", "nothing but repeated or lost work"),
    "idle": ("idle", "no call was under way"),
}
"""Field of the ledger → its name, and what happened meanwhile."""


@dataclass(frozen=True)
class Table:
    """Columns of numbers stand to the right. Notes say what a column's name does not. `total` is below all rows."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    notes: tuple[str, ...] = ()
    total: Sequence[Cell] = ()

    def is_number(self, column: int) -> bool:
        """Whether all cells of the column that hold something hold a number."""
        cells = [row[column] for row in self.rows if row[column] != ""]
        return bool(cells) and all(isinstance(cell, tuple) for cell in cells)

    def without_empty_columns(self) -> "Table":
        kept = [number for number in range(len(self.columns)) if any(row[number] != "" for row in self.rows)]
        rows = [[row[number] for number in kept] for row in self.rows]
        total = [self.total[number] for number in kept] if self.total else ()
        return Table(tuple(self.columns[number] for number in kept), rows, self.notes, total)


# ── summary ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def courses_table(courses: Sequence[Course]) -> Table:
    def shown(course: Course, value: float | None) -> Cell:
        return "" if value is None else (Figure(course.label, course.metric, course.decimals).show(value), value)

    rows = [
        (
            it.label,
            *(shown(it, value) for value in (it.first, it.last, it.best)),
            (_ends(it), it.first_step),
        )
        for it in courses
    ]
    notes = [HELD_OUT_IS] if any(course.metric.startswith(HELD_OUT) for course in courses) else []
    if any(course.first_step != course.first_until for course in courses):
        notes.insert(0, ENDS_ARE)
    return Table(("metric", "first", "last", "best", "steps"), rows, tuple(notes)).without_empty_columns()


def over_all_table(means: Mapping[str, float]) -> Table:
    return Table(("over all steps", "mean"), [(name, (f"{mean:.6g}", mean)) for name, mean in means.items()])


def calls_table(calls: Sequence[Call]) -> Table:
    """The time of the workers by call."""
    total = sum(call.workers_s for call in calls) or 1.0
    has_mfu = any(call.mfu is not None for call in calls)
    rows = []
    for call in calls:
        share, each = call.workers_s / total, call.workers_s / max(1, call.parts)
        numbers: list[Cell] = [(f"{share:.0%}", share), (f"{each:.3f} s", each), (str(call.parts), call.parts)]
        rows.append([call.name, *numbers, *[mfu_cell(call.mfu)] * has_mfu])
    columns = ("call", "workers' time", "each part", "parts", *("MFU",) * has_mfu)
    note = "workers' time: a call's share of what all workers computed; each part: the mean of what its workers took"
    return Table(columns, rows, (note,))


def ledger_table(elapsed: Elapsed) -> Table:
    """The accounts that have something, and their sum."""
    view = elapsed.ledger
    rows: list[Sequence[Cell]] = []
    for field, (name, meaning) in ACCOUNTS.items():
        seconds: float = getattr(view, field)
        if seconds >= LEAST_SHOWN * view.wall:
            share = seconds / (view.wall or 1.0)
            rows.append((name, seconds_cell(seconds), (f"{share:.0%}", share), meaning))
    total = ("in all", seconds_cell(view.wall), "", _made_up_of(elapsed))
    note = "Wall time begins when a run is submitted or resumed. The time in which nobody ran it is no part of it."
    return Table(("wall time", "time", "share", "meanwhile"), rows, (note,), total)


def wall_time(elapsed: Elapsed) -> str:
    """In all, and what it is made up of."""
    made_up_of = _made_up_of(elapsed)
    return seconds_cell(elapsed.ledger.wall)[0] + (f": {made_up_of}" if made_up_of else "")


def _made_up_of(elapsed: Elapsed) -> str:
    decimals = 1 if elapsed.ledger.wall < 60 else 0
    wall, within = (round(it, decimals) for it in (elapsed.ledger.wall, sum(it.seconds for it in elapsed.attempts)))
    count = counted(len(elapsed.attempts), "attempt")
    if within > wall:  # clocks of several machines
        return ""
    place = "before it began" if len(elapsed.attempts) == 1 else "before and between them"
    return f"{seconds_cell(within)[0]} in {count}, {seconds_cell(wall - within)[0]} {place}"


def attempts_table(attempts: Sequence[Attempt]) -> Table:
    rows = []
    for it in attempts:
        steps = [f"{_steps(*it.again)} again"] if it.again is not None else []
        steps += [_steps(it.first_step, it.last_step)] if it.first_step is not None and it.last_step is not None else []
        repeated = f", {counted(it.replayed, 'step')}" if it.replayed else ""
        lost: Cell = (f"{it.lost_s:.1f} s{repeated}", it.lost_s) if it.lost_s or it.replayed else ""
        resumed = "" if it.resumed_s is None else seconds_cell(it.resumed_s)
        ended = ", ".join(part for part in (it.verdict, it.who) if part) or ("done" if it is not attempts[-1] else "")
        rows.append(((str(it.attempt), it.attempt), ended, ", ".join(steps), seconds_cell(it.seconds), lost, resumed))
    columns = ("attempt", "ended by", "steps", "time", "lost work", "resumed after")
    notes = [RESUMED_AFTER] if any(row[5] for row in rows) else []
    if any(row[4] for row in rows):
        notes.insert(0, LOST_WORK)
    return Table(columns, rows, tuple(notes)).without_empty_columns()


def facts_of(view: Summary) -> dict[str, str]:
    """What no table says, the most important first."""
    speed, where = view.speed, view.where
    rates = [] if speed.samples_per_s is None else [f"{quantity(speed.samples_per_s)} samples/s"]
    rates += [] if speed.tokens_per_s is None else [f"{quantity(speed.tokens_per_s)} generated tokens/s"]
    utilisation = speed.peak if speed.mfu is None else f"{small_share(speed.mfu)} of {speed.peak}"
    facts = {
        "algorithm": view.made.algorithm,
        **({"data": view.made.data} if view.made.data else {}),
        "submitted": f"{datetime.fromtimestamp(view.made.submitted, UTC):%Y-%m-%d %H:%M} UTC",
        "steps": str(view.step) + ("" if view.steps is None else f" of {view.steps}"),
        "restarts": str(view.elapsed.restarts),
        **({"nodes": "; ".join(view.elapsed.nodes)} if view.elapsed.nodes else {}),
        "run directory": where.run_dir,
    }
    if rates:
        facts["speed"] = f"{', '.join(rates)}, over the {seconds_cell(speed.seconds)[0]} of its attempts"
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


# ── other views ───────────────────────────────────────────────────────────────────────────────────────────────────────
def steps_table(view: Steps) -> Table:
    shown = figures([step.metrics for step in view.steps], view.right_at)[:FIGURES_SHOWN]
    has_mfu = any(step.mfu is not None for step in view.steps)
    rows = [
        (
            (str(it.step), it.step),
            (str(it.attempt), it.attempt),
            seconds_cell(it.seconds),
            (str(it.samples), it.samples),
            (quantity(it.tokens), it.tokens),
            *(_figure_cell(figure, it.metrics.get(figure.key)) for figure in shown),
            *[mfu_cell(it.mfu)] * has_mfu,
            _costliest(it),
        )
        for it in view.steps
    ]
    names = ("step", "attempt", "time", "samples", "tokens", *(figure.label for figure in shown))
    notes = [f"MFU: of {view.peak}" if has_mfu else f"no MFU: {view.peak}"] if view.peak else []
    if view.missing:
        notes.append(f"no row of costs was kept of step {', '.join(map(str, view.missing))}")
    return Table((*names, *("MFU",) * has_mfu, "costliest calls"), rows, tuple(notes))


def _figure_cell(figure: Figure, value: float | None) -> Cell:
    return (figure.show(value), value) if isinstance(value, int | float) else ""


def _costliest(step: Step) -> str:
    """Its calls with most of the workers' time."""
    total = sum(call.workers_s for call in step.calls) or 1.0
    costliest = sorted(step.calls, key=lambda call: -call.workers_s)[:CALLS_SHOWN]
    return ", ".join(f"{call.name} {call.workers_s / total:.0%}" for call in costliest)


def stragglers_table(view: Stragglers) -> Table:
    rows = [
        (
            f"worker-{it.worker}",
            it.node or "not known",
            seconds_cell(it.waited_s),
            (f"{it.slowest} of {it.calls}", it.slowest),
            ", ".join(
                f"{call} {seconds:.1f} s"
                for call, seconds in list(it.by_call.items())[:CALLS_SHOWN]
                if seconds >= LEAST_S
            ),
        )
        for it in view.workers
    ]
    return Table(("worker", "node", "waited for", "slowest in calls", "most in"), rows)


def _most_in(it: Straggler) -> str:
    waits = [f"{call} {seconds:.1f} s" for call, seconds in it.by_call.items() if seconds >= LEAST_S]
    return ", ".join(waits[:CALLS_SHOWN])


def exclude_advice(view: Stragglers) -> str:
    """Empty where no node stands out."""
    advice = "Others wait more than twice as long for these nodes as for the median node. Resume without them:"
    return f"{advice} --cluster.slurm.exclude {view.exclude}" if view.exclude else ""


def memory_table(view: Memory) -> Table:
    rows = [(call.name, size_cell(call.expected), size_cell(call.peak)) for call in view.calls]
    note = f"Of the worker that used most in each call. Measured: the peak of {view.counted}."
    return Table(("call", "expected", "measured"), rows, (note,))


def nodes_table(view: Resources) -> Table:
    rows = [
        (
            (str(it.attempt), it.attempt),
            it.host,
            *(size_cell(it.used), size_cell(it.limit)),
            share_cell(it.headroom, 0),
            size_cell(it.free),
            (f"{1000 * it.fsync_s:.1f} ms", it.fsync_s),
        )
        for it in view.nodes
    ]
    columns = ("attempt", "node", "most memory", "limit", "left of it", "least disk left", "slowest fsync")
    return Table(columns, rows).without_empty_columns()


def workers_table(view: Resources) -> Table:
    rows = [
        (
            (str(it.attempt), it.attempt),
            f"worker-{it.worker}",
            it.host,
            size_cell(it.rss),
            "" if it.cpus is None else (f"{it.cpus:.2f}", it.cpus),
            *(size_cell(it.gpu_used), size_cell(it.gpu_total)),
            share_cell(it.gpu_busy, 0),
        )
        for it in view.workers
    ]
    columns = ("attempt", "worker", "node", "most memory", "CPUs busy", "most GPU memory", "of", "GPU busy")
    found = Table(columns, rows).without_empty_columns()
    means = [name for name in found.columns if name.endswith("busy")]
    notes = [f"{' and '.join(means)}: means; all else is the worst that was seen."] if means else []
    notes.append("A worker's memory includes what it shares with others of its node.")
    return replace(found, notes=tuple(notes))


def exports_table(view: Exports) -> Table:
    rows = [
        (
            (str(it.step), it.step),
            it.role,
            it.dtype,
            (str(it.shards), it.shards),
            size_cell(it.bytes),
            it.folder,
        )
        for it in view.exportable
    ]
    return Table(("step", "role", "type", "shards", "size", "written to"), rows)


# ── cells ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def seconds_cell(seconds: float) -> Cell:
    return (f"{seconds:.1f} s" if seconds < 60 else duration(seconds), seconds)


def share_cell(share: float | None, decimals: int = 1) -> Cell:
    return "" if share is None else (f"{share:.{decimals}%}", share)


def mfu_cell(share: float | None) -> Cell:
    return "" if share is None else (small_share(share), share)


def small_share(share: float) -> str:
    """With a digit that is not 0, also where it is small."""
    return f"{share:.1%}" if share >= 0.001 or not share else f"{100 * share:.1g}%"


def size_cell(size: float | None) -> Cell:
    return "" if size is None else (size_in_words(size), size)


def _ends(it: Course) -> str:
    """The steps of which its first and its last value are."""
    first, last = _steps(it.first_step, it.first_until), _steps(it.last_from, it.last_step)
    return first if first == last else f"{first}, {last}"


def _steps(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}–{last}"

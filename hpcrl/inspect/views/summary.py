"""What a run has reached, what it cost, and where everything is."""

from collections.abc import Sequence

import msgspec

from hpcrl.durable.history import read_history
from hpcrl.durable.means import over_all
from hpcrl.durable.origin import forked_from
from hpcrl.durable.records import Verdict
from hpcrl.inspect.lines import Row
from hpcrl.inspect.metrics import SHARE_RIGHT, figures, series, with_logged
from hpcrl.inspect.nodes import changes_of
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.shown_settings import shown_settings
from hpcrl.inspect.utilisation import newest_peaks
from hpcrl.inspect.views.attempts import Attempt, Ledger, attempts, ledger
from hpcrl.inspect.views.status import is_fresh
from hpcrl.inspect.views.why import Cause, newest_cause

REWARDS = ("rew_inf/reward", "eval_rew/reward", SHARE_RIGHT)
"""Metrics that have a best value: the highest."""
END_ROWS = 10
"""Steps at either end over which a metric is averaged, where it is measured in every step; they never overlap."""


class Course(msgspec.Struct, frozen=True):
    """Where a metric began and ended. One of every step is averaged over a few, an evaluation is not."""

    label: str
    metric: str
    first: float
    last: float
    best: float | None
    """None where a metric has none."""
    first_step: int
    last_step: int
    decimals: int = 3
    first_until: int = 0
    """The last of the steps that `first` is the mean of."""
    last_from: int = 0
    """The first of the steps that `last` is the mean of."""


class Call(msgspec.Struct, frozen=True):
    """What a call of the graph, or a move, has cost in all attempts."""

    name: str
    parts: int
    workers_s: float
    """Of all workers."""
    tokens: int
    bytes: int
    """Spilled."""
    mfu: float | None
    """Operations of its model over what its workers could have done meanwhile; None where either is unknown."""


class LateRow(msgspec.Struct, frozen=True):
    """What an attempt wrote of a step after a newer one had taken over: it does not count."""

    attempt: int
    step: int


class Where(msgspec.Struct, frozen=True):
    """What there is of a run, and what it comes from."""

    run_dir: str
    forked_from: str | None
    exports: dict[str, str]
    """Role → its newest one."""
    samples: int
    """Archives in `samples/`, one of each step of which samples are kept."""


class Speed(msgspec.Struct, frozen=True):
    """Over all that the attempts took, starts and evaluations too."""

    seconds: float
    samples_per_s: float | None
    tokens_per_s: float | None
    """Generated for training."""
    mfu: float | None
    """Operations of all models over what the devices could have done in that time."""
    peak: str
    """What that is a share of, or why it is not known; empty where nothing was measured."""


class Elapsed(msgspec.Struct, frozen=True):
    """Where the time went. `restarts` counts attempts after the first that had a process; `nodes` says how their number
    has changed, where it is a range."""

    restarts: int
    attempts: list[Attempt]
    ledger: Ledger
    nodes: tuple[str, ...] = ()


class Made(msgspec.Struct, frozen=True):
    """What a run was submitted to do. `data` is what it trains on; empty where it mixes several, or reads none."""

    algorithm: str
    data: str
    submitted: float
    """Seconds since 1970, by the clock of whoever submitted it."""


class Summary(msgspec.Struct, frozen=True):
    """The JSON of `hpcrl inspect RUN summary --json`."""

    name: str
    made: Made
    where: Where
    state: str | None
    """Of its verdict; None where it has none."""
    reason: str
    step: int
    steps: int | None
    courses: list[Course]
    over_all: dict[str, float]
    """Of a run that trains nothing: each statistic's mean over all steps."""
    calls: list[Call]
    """The costliest first."""
    speed: Speed
    elapsed: Elapsed
    late: list[LateRow]
    cause: Cause | None
    hints: dict[str, str]
    """Command → what it is good for."""


def summary(reader: RunReader) -> Summary:
    run, rows = reader.run, reader.rows()
    settings = shown_settings(run)
    control, origin, verdict = settings["control"], forked_from(run), run.newest_verdict()
    cause = newest_cause(run) if verdict is None or verdict.state == "failed" else None
    folders = [run.samples / name for name in run.files.listing(run.samples)]
    samples = [name for folder in folders if folder.is_dir() for name in run.files.listing(folder) if name[0] != "."]
    return Summary(
        name=run.root.name,
        made=Made(settings["algorithm"], (settings.get("data") or {}).get("train") or "", run.read_run().created),
        where=Where(str(run.root), None if origin is None else str(origin), _exports(reader), len(samples)),
        state=None if verdict is None else verdict.state,
        reason="" if verdict is None else verdict.reason,
        step=reader.step,
        steps=reader.length(control["steps"], control["epochs"]),
        courses=_courses(rows, reader.right_at),
        over_all=dict(over_all(line.event for line in read_history(run).lines if line.event is not None) or {}),
        calls=_calls(reader),
        speed=_speed(reader),
        elapsed=Elapsed(
            max(0, len(reader.attempts) - (1 if origin is None else 2)),
            attempts(reader),
            ledger(reader),
            changes_of(reader),
        ),
        late=[LateRow(number, row["step"]) for number, row in reader.late()],
        cause=cause,
        hints=_hints(str(run.root), verdict, cause, verdict is None and cause is None and _works(reader)),
    )


def _works(reader: RunReader) -> bool:
    """Whether somebody was alive just now, by the newest events."""
    return reader.newest is not None and is_fresh(reader.newest)


def _courses(rows: Sequence[Row], right_at: float) -> list[Course]:
    found = []
    for figure in with_logged(figures(rows, right_at), rows):
        steps, values = series(rows, figure.key)
        if not values:
            continue
        width = min(END_ROWS, max(1, len(values) // 2)) if len(values) > len(rows) // 2 else 1
        first, newest = sum(values[:width]) / width, sum(values[-width:]) / width
        best = max(values) if figure.key in REWARDS else None
        spans = steps[0], steps[-1], figure.decimals, steps[width - 1], steps[-width]
        found.append(Course(figure.label, figure.key, first, newest, best, *spans))
    return found


def _calls(reader: RunReader) -> list[Call]:
    peaks = newest_peaks(reader)
    calls = [
        Call(name, it.parts, it.workers_s, it.tokens, it.bytes, peaks.mfu(name, it.flops, it.workers_s))
        for name, it in reader.totals().items()
    ]
    return sorted(calls, key=lambda call: -call.workers_s)


def _speed(reader: RunReader) -> Speed:
    closed = [row for attempt in reader.attempts.values() for row in attempt.costs()]
    peaks = newest_peaks(reader)
    mfu = peaks.whole({call: total.flops for call, total in reader.totals().items()}, reader.seconds)
    if reader.seconds <= 0 or not closed:
        return Speed(round(reader.seconds, 3), None, None, mfu, peaks.said)
    samples, tokens = sum(row.samples for row in closed), sum(row.tokens for row in closed)
    rates = samples / reader.seconds, tokens / reader.seconds or None
    return Speed(round(reader.seconds, 3), *rates, mfu, peaks.said)


def _exports(reader: RunReader) -> dict[str, str]:
    run, found = reader.run, {}
    for role in sorted(run.files.listing(run.exports)) if run.exports.is_dir() else ():
        exports = sorted(name for name in run.files.listing(run.exports / role) if not name.startswith("."))
        if exports:
            found[role] = str(run.exports / role / exports[-1])
    return found


def _hints(root: str, verdict: Verdict | None, cause: Cause | None, works: bool) -> dict[str, str]:
    hints = {f"hpcrl inspect {root} --plot": "its curves", f"hpcrl logs {root}": "what every process did, by time"}
    if works:
        return {f"hpcrl status {root}": "what it does now"} | hints
    if verdict is None or verdict.state != "done":
        when = "when the cause is gone, " if verdict is not None and verdict.state == "failed" else ""
        resume = f"hpcrl resume {root}"
        command = cause.next if cause is not None and cause.next.startswith(resume) else resume
        hints = {command: f"{when}resume from the last finished call"} | hints
    return hints

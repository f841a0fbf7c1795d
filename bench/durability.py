"""What a demo's PPO run has waited for durability, from the events that its processes wrote.

Time is charged where a worker was idle while the master was appending to the journal (it neither hears nor sends then),
or while nothing was left to execute and a step had yet to open. An upper bound: much of that idle time is waiting for
another worker.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from demo_runs import events_of, last_demo, moment
from figures import Figure, median
from spans import Span, length, shared, united

from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.lines import Row, Tail


def durability(demos: Path) -> list[Figure]:
    run = last_demo(demos)
    events = list(events_of(run))
    journal = [row["seconds"] for row in events if row["event"] == "journalled"]
    spilled = [row["seconds"] for row in events if row["event"] == "spilled"]
    whole = moment(events, "closed", max) - moment(events, "opened", min)
    workers = list(_busy(run, events))
    blocked = united([*_appending(events), *_opening(events)])
    waited = sum(length(blocked) - shared(blocked, busy) for busy in workers)
    steps = sum(row["event"] == "closed" for row in events)
    return [
        Figure(
            "workers' time waited for durability, of all step time",
            100 * waited / (whole * len(workers)),
            "%",
            "≤ 5",
            f"{waited:.2f} s of {len(workers)} workers in {whole:.0f} s, {steps} steps",
        ),
        Figure(
            "the master's time in appends to the journal, of all step time",
            100 * sum(journal) / whole,
            "%",
            "",
            f"{len(journal)} appends, {sum(journal):.2f} s",
        ),
        Figure("an append to the journal, with fsync", median(journal) * 1e3, "ms", "", _most(journal)),
        Figure("a spill, behind the work", median(spilled) * 1e3, "ms", "", _most(spilled)),
    ]


def _most(seconds: Sequence[float]) -> str:
    return f"median of {len(seconds)}; the longest {max(seconds) * 1e3:.1f} ms"


def _busy(run: RunDirectory, events: Sequence[Row]) -> Iterator[list[Span]]:
    """When each worker was executing: its own log says when it began, the master's how long it took."""
    took = {_unit(row): row["seconds"] for row in events if row["event"] == "executed"}
    for path in sorted(run.logs(0).glob("worker-*.jsonl")):
        begun = [row for row in Tail(path).rows() if row["event"] == "execute" and _unit(row) in took]
        yield united((row["time"], row["time"] + took[_unit(row)]) for row in begun)


def _appending(events: Sequence[Row]) -> Iterator[Span]:
    for row in events:
        if row["event"] == "journalled":
            yield row["time"] - row["seconds"], row["time"]


def _opening(events: Sequence[Row]) -> Iterator[Span]:
    """From the moment when nothing was left to execute until a step opened."""
    sent: set[tuple] = set()
    idle_since: float | None = None
    for row in events:
        if row["event"] == "sent":
            sent.add(_unit(row))
        elif row["event"] == "executed":
            sent.discard(_unit(row))
        elif row["event"] == "opened" and idle_since is not None and not sent:
            yield idle_since, row["time"]
        if row["event"] == "executed":
            idle_since = None if sent else row["time"]


def _unit(row: Row) -> tuple[int, str, int]:
    return row["step"], row["call"], row["part"]

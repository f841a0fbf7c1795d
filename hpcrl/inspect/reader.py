"""The one reader of a run: what its processes wrote, as far as the run itself believes it. It writes nothing there.

Of a long attempt it reads the ends: its first events, its newest row of costs, and the events behind that. Metrics
count as the newest attempt has them that has said what it believes; what an older one wrote later is `late`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from hpcrl.costs import Seen, SeenFold, StepCost, Total, decode
from hpcrl.durable.rundir import RunDirectory
from hpcrl.events import RowsLeftOut, WorkersReady
from hpcrl.inspect.activity import PACED, Activity
from hpcrl.inspect.entries import EntryTail
from hpcrl.inspect.lines import Row, Tail, backwards, parse
from hpcrl.inspect.planned import Planned, read_planned


@dataclass
class AttemptReader:
    """One attempt, as of the last `update`."""

    run: RunDirectory
    number: int
    activity: Activity = field(init=False)
    _events: EntryTail = field(init=False)
    _costs: Tail | None = None

    def __post_init__(self) -> None:
        self.activity = Activity(self.number)
        self._events = EntryTail(self.run.events(self.number))

    def update(self) -> None:
        """Read what was added since the last time."""
        if self._costs is None:
            self._begin()
        else:
            self.activity.close(costs_of(self._costs.lines()))
        for entry in self._events.read():
            self.activity.feed(entry)

    @property
    def skipped(self) -> int:
        """Lines of events that were read, and are damaged or unknown."""
        return self._events.skipped

    def costs(self) -> list[StepCost]:
        """All of its rows."""
        return costs_of(Tail(self.run.costs(self.number)).lines())

    def first(self) -> StepCost | None:
        """Its first row."""
        return next((row for line in Tail(self.run.costs(self.number)).each() if (row := cost_of(line))), None)

    def host_of(self, rank: int) -> str:
        """The host of a worker, as far as the plan and the events say it; else empty."""
        nodes = self._nodes
        return self.activity.nodes.get(nodes[rank], "") if rank < len(nodes) else ""

    @property
    def roles(self) -> dict[str, str]:
        """Call → its role, as far as the plan says it."""
        return {call.name: call.role for call in self.plan.calls}

    @property
    def nodes(self) -> int:
        """How many its plan has; 0 before it has one."""
        return len(set(self._nodes))

    @property
    def _nodes(self) -> list[int]:
        """Of the workers, by rank, in the attempt's plan."""
        return [worker.node for worker in self.plan.workers]

    @cached_property
    def plan(self) -> Planned:
        """What views need of its plan."""
        return read_planned(self.run.plan(self.number))

    def _begin(self) -> None:
        """Its first events, until its workers are ready, and what its newest rows of costs say of all others."""
        path = self.run.costs(self.number)
        self._costs = Tail(path, from_end=True)
        rows = [row for line in _some(backwards(path), PACED) if (row := cost_of(line))][::-1]
        if not rows:
            return
        for entry in self._events.each():
            self.activity.feed(entry)
            if isinstance(entry.event, WorkersReady):
                break
        self.activity.resume(rows)
        self._events.skip(rows[-1].events)


@dataclass
class RunReader:
    """All attempts of a run."""

    run: RunDirectory
    attempts: dict[int, AttemptReader] = field(default_factory=dict)
    _metrics: Tail | None = None
    _rows: dict[int, Row] = field(default_factory=dict)
    """By step, of what `_metrics` has read."""

    def __post_init__(self) -> None:
        self.update()

    def update(self) -> None:
        """Read what was added since the last time. Attempts that a newer one has succeeded are read once."""
        numbers = self.run.numbers()
        for number in numbers:
            if number not in self.attempts or number >= numbers[-1] - 1:
                self.attempts.setdefault(number, AttemptReader(self.run, number)).update()
        for name in ("believed", "last_row", "seen"):
            self.__dict__.pop(name, None)

    @property
    def activities(self) -> dict[int, Activity]:
        return {number: attempt.activity for number, attempt in self.attempts.items()}

    @property
    def newest(self) -> Activity | None:
        """The newest attempt's activity."""
        return self.attempts[max(self.attempts)].activity if self.attempts else None

    @cached_property
    def believed(self) -> int | None:
        """The attempt whose metrics count: the newest that has said what it believes of older ones and began after.

        Its first event says that it has; where events found no room, its rows do.
        """
        for number, attempt in sorted(self.attempts.items(), reverse=True):
            begun = attempt.activity.began is not None or any(backwards(self.run.metrics(number)))
            if begun and self.run.has_adopted(number):
                return number
        return None

    # ── metrics ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def rows(self) -> list[Row]:
        """A row per step, in order of steps. What was added since the last call is read."""
        if self.believed is None:
            return []
        if self._metrics is None or self._metrics.path != self.run.metrics(self.believed):
            self._metrics, self._rows = Tail(self.run.metrics(self.believed)), {}
        self._rows |= by_step(self._metrics)
        return [row for _, row in sorted(self._rows.items())]

    def late(self) -> Iterator[tuple[int, Row]]:
        """Rows of older attempts of steps that the run does not count as closed, with the attempt's number."""
        steps = {row["step"] for row in self.rows()}
        for number in sorted(self.attempts):
            if self.believed is not None and number < self.believed:
                rows = by_step(Tail(self.run.metrics(number)))
                yield from ((number, row) for step, row in sorted(rows.items()) if step not in steps)

    @cached_property
    def last_row(self) -> Row | None:
        """The newest row, without reading others."""
        if self.believed is None:
            return None
        found = (parse(line) for line in backwards(self.run.metrics(self.believed)))
        return next((row for row in found if row is not None and isinstance(row.get("step"), int)), None)

    @property
    def step(self) -> int:
        """The last step that has ended; 0 before any."""
        return 0 if (row := self.last_row) is None else row["step"]

    @cached_property
    def seen(self) -> Seen:
        """What all rows of metrics say together. Reads them only where no row of costs does."""
        step = self.step
        for _, attempt in sorted(self.attempts.items(), reverse=True):
            for row in reversed(attempt.activity.closed):
                if row.step == step:
                    return row.seen
        seen, fold = Seen(), SeenFold()
        for metrics in self.rows():
            seen = fold.feed(metrics)
        return seen

    def newest_metrics(self) -> dict[str, float]:
        """The newest value of each."""
        row = {} if (last := self.last_row) is None else last
        measured = {key: float(value) for key, value in row.items() if isinstance(value, int | float)}
        return self.seen.newest | measured

    # ── over all attempts ─────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def skipped(self) -> int:
        return sum(attempt.skipped for attempt in self.attempts.values())

    @property
    def left_out(self) -> dict[str, RowsLeftOut]:
        """By source, as the newest attempt said that got as far as its rows."""
        told = (activity.left_out for _, activity in sorted(self.activities.items(), reverse=True))
        return next((found for found in told if found), {})

    def restarts(self) -> list[int]:
        """The steps that attempts closed first which went on where another had ended."""
        firsts = [row.step for _, attempt in sorted(self.attempts.items()) if (row := attempt.first())]
        return firsts[1:]

    def totals(self) -> dict[str, Total]:
        """What each call and each move has cost in all attempts."""
        found: dict[str, Total] = {}
        for activity in self.activities.values():
            for call, total in activity.totals.items():
                found[call] = found.get(call, Total()) + total
        return found

    def length(self, steps: int | None, epochs: int | None) -> int | None:
        """How many steps the run has by these settings; of so many epochs, as the newest master that had them counted.

        None where no master has counted them yet.
        """
        if steps is not None:
            return steps
        counts = (
            activity.steps
            for attempt, activity in sorted(self.activities.items(), reverse=True)
            if activity.steps is not None and self._epochs_of(attempt) == epochs
        )
        return next(counts, None)

    def _epochs_of(self, attempt: int) -> int | None:
        claim = self.run.read_claim(attempt)
        version = 0 if claim is None else self.run.version_of(claim.submission)
        epochs: int | None = self.run.read_settings(version).experiment["control"]["epochs"]
        return epochs

    @property
    def seconds(self) -> float:
        """The time that all attempts took, without the pauses between them."""
        return sum((activity.last or 0.0) - (activity.began or 0.0) for activity in self.activities.values())


def merged_metrics(run: RunDirectory) -> list[Row]:
    """A row per step, as the run believes them, in order of steps."""
    return RunReader(run).rows()


def by_step(tail: Tail) -> dict[int, Row]:
    """The rows of metrics since the last call; of a step that has several, the last one."""
    return {row["step"]: row for row in tail.rows() if isinstance(row.get("step"), int)}


def costs_of(lines: list[str]) -> list[StepCost]:
    """The rows of costs among lines."""
    return [row for line in lines if (row := cost_of(line)) is not None]


def cost_of(line: str) -> StepCost | None:
    try:
        return decode(line)
    except msgspec.DecodeError:
        return None


def _some(lines: Iterator[str], count: int) -> Iterator[str]:
    for line, _ in zip(lines, range(count), strict=False):
        yield line

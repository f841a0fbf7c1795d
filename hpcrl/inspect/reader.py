"""The one reader of a run: what its processes wrote, as far as the run itself believes it. It writes nothing there.

Of a long attempt it reads the ends: its first events, its newest row of costs, the events behind that, and what was
under way (`live.json`). Metrics count as the newest attempt has them that has said what it believes; what an older one
wrote later is `late`.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from hpcrl.cost_fold import SeenFold
from hpcrl.costs import Live, Made, Ranks, Seen, StepCost, Total, decode, decode_live, made_in, made_since, take_ranks
from hpcrl.durable.files import unreadable
from hpcrl.durable.rundir import RunDirectory
from hpcrl.event_log import Entry
from hpcrl.events import RowsLeftOut, WorkersReady
from hpcrl.inspect.activity import PACED, Activity
from hpcrl.inspect.entries import EntryTail
from hpcrl.inspect.lines import Row, Tail, backwards, parse
from hpcrl.inspect.metrics import right_at
from hpcrl.inspect.older import OlderFold, row_of
from hpcrl.inspect.planned import Planned, read_planned
from hpcrl.inspect.shown_settings import shown_settings

SAME_S = 0.1
"""Two times of one moment differ by less."""
STALE_S = 10.0
"""`live.json` may be so much older than a row of costs, where files are slow."""


@dataclass
class AttemptReader:
    """One attempt, as of the last `update`."""

    run: RunDirectory
    number: int
    before: "AttemptReader | None" = None
    """The attempt before it."""
    activity: Activity = field(init=False)
    lacking: str = ""
    """What is wrong with its `live.json`, in words: then it is not known what was under way."""
    _events: EntryTail = field(init=False)
    _closed: Tail | None = None
    """The newest rows of costs."""
    _older: OlderFold = field(default_factory=OlderFold)
    _rows: list[StepCost] = field(default_factory=list)
    _all_rows: Tail = field(init=False)

    def __post_init__(self) -> None:
        self.activity = Activity(self.number)
        self._events = EntryTail(self.run.events(self.number), self._older.follow)
        self._all_rows = Tail(self.run.costs(self.number))

    def update(self) -> None:
        """Read what was added since the last time; what was under way first, of which newer rows tell more."""
        live = self._read_live()
        if self._closed is None:
            self._begin()
        else:
            self.activity.close(costs_of(self._closed.lines()))
        for entry in self._events.read():
            self._feed(entry)
        self.activity.show(self._believed(live))

    @property
    def skipped(self) -> int:
        """Lines of events that were read, and are damaged or unknown."""
        return self._events.skipped

    def costs(self) -> list[StepCost]:
        """All of its rows."""
        self._rows += costs_of(self._all_rows.lines())
        return self._rows

    def made(self) -> Iterator[Made]:
        """All parts of calls, and moves, that it has executed: first those of closed steps."""
        ranks: Ranks = {}
        for row in self.costs():
            take_ranks(ranks, row.ranks)
            yield from (self._placed(made) for made in made_in(row, ranks))
        if (live := self.activity.live) is not None:
            take_ranks(ranks, live.ranks)
            yield from (self._placed(made) for made in made_since(live, ranks))

    @property
    def says_who(self) -> bool:
        """Whether rows, or the plan, say which workers had what."""
        return bool(self.plan.replicas) or any(row.ranks for row in self.costs())

    def _placed(self, made: Made) -> Made:
        """Where no row says whose it was, the plan does; where that is lost, only the slowest is known."""
        ranks = made.ranks or self.plan.ranks(made.call, made.span.part)
        return made._replace(ranks=ranks or ((made.span.slowest,) if made.span.slowest >= 0 else ()))

    def totals(self) -> dict[str, Total]:
        """What each call, and each move, has cost."""
        found: dict[str, Total] = {}
        steps = [it for row in self.costs() for it in (row.calls, *row.again.values())]
        steps += [] if self.activity.live is None else self.activity.live.open.values()
        for calls in steps:
            for call, cost in calls.items():
                found[call] = found.get(call, Total()) + cost
        return found

    def first(self) -> StepCost | None:
        """Its first row."""
        return next((row for line in Tail(self.run.costs(self.number)).each() if (row := cost_of(line))), None)

    def host_of(self, rank: int) -> str:
        """The host of a worker, as far as the plan and the events say it; else empty."""
        nodes = self._nodes
        return self.hosts.get(nodes[rank], "") if rank < len(nodes) else ""

    @property
    def hosts(self) -> dict[int, str]:
        """Node → its host. Agents that an earlier attempt under the same master had met say nothing again."""
        found: dict[int, str] = {}
        attempt: AttemptReader | None = self
        while attempt is not None and attempt.submission == self.submission:
            found = attempt.activity.nodes | found
            attempt = attempt.before
        return found

    @cached_property
    def submission(self) -> str | None:
        """The one that it is of; None where that is not written down."""
        claim = self.run.read_claim(self.number)
        return None if claim is None else claim.submission

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
        self._closed = Tail(path, from_end=True)
        lines = [(line, row) for line in _some(backwards(path), PACED) if (row := cost_of(line))][::-1]
        if not lines:
            return
        for entry in self._events.each():
            self._feed(entry)
            if isinstance(entry.event, WorkersReady):
                break
        self.activity.resume([row for _, row in lines])
        self._older.resume(lines[-1][0])
        self._events.skip(lines[-1][1].events)

    def _feed(self, entry: Entry) -> None:
        self.activity.feed(entry)
        self._older.feed(entry)

    def _read_live(self) -> Live | None:
        path, self.lacking = self.run.live(self.number), ""
        name = self.run.files.name(path)
        try:
            return decode_live(path.read_bytes())
        except OSError as error:
            self.lacking = unreadable(name, error)
        except msgspec.DecodeError:
            self.lacking = f"{name} is damaged"
        return None

    def _believed(self, live: Live | None) -> Live | None:
        """What was read, if it is this attempt's and as new as its rows; of an older format, what its events say."""
        began, closed, name = self.activity.began, self.activity.closed, self.run.files.name(self.run.live(self.number))
        if live is None:
            live = self._older.live()
            if live is not None or began is None:
                self.lacking = ""
            return live
        if live.attempt != self.number or (began is not None and abs(live.began - began) > SAME_S):
            self.lacking = f"{name} is of another attempt"
        elif closed and closed[-1].at_s - live.at_s > STALE_S:
            self.lacking = f"{name} is {closed[-1].at_s - live.at_s:.0f} s older than the newest row of costs"
        return None if self.lacking else live


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
                before = self.attempts.get(number - 1)
                self.attempts.setdefault(number, AttemptReader(self.run, number, before)).update()
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

    @cached_property
    def right_at(self) -> float:
        """The reward from which a response counts as right."""
        return right_at(shown_settings(self.run))

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
    def lacking(self) -> str:
        """What is wrong with the newest attempt's `live.json`, in words."""
        return self.attempts[max(self.attempts)].lacking if self.attempts else ""

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
        for attempt in self.attempts.values():
            for call, total in attempt.totals().items():
                found[call] = found[call].joined(total) if call in found else total
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
    for read in (decode, row_of):
        with suppress(msgspec.DecodeError):
            return read(line)
    return None


def _some(lines: Iterator[str], count: int) -> Iterator[str]:
    for line, _ in zip(lines, range(count), strict=False):
        yield line

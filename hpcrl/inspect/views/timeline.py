"""Which worker did what when, from rows of costs: calls, blends, moves and gaps, and what each step waited for; beside
them spills, saves and what left a device, and, from workers' logs, what memory their models held.

A row says when a part was sent, when all of its workers had replied, and how long the slowest of them took: before that
the part waited for rows, or for its workers. Times are the master's.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Literal, NamedTuple, Protocol

import msgspec

from hpcrl.costs import Made, StepCost
from hpcrl.errors import ConfigurationError
from hpcrl.inspect.activity import Activity
from hpcrl.inspect.clocks import read_clocks
from hpcrl.inspect.held import BytesHeld, Window, read_held
from hpcrl.inspect.looks import Used, read_used
from hpcrl.inspect.planned import Planned
from hpcrl.inspect.reader import AttemptReader, RunReader
from hpcrl.inspect.steps_asked import among

LAST_STEPS = 3
"""That are shown where nobody asks for some."""
TIE_S = 0.0005
"""What ended so shortly after something began may still be what that waited for: times are rounded, and the slowest
worker's clock is not the master's."""


class Segment(msgspec.Struct, frozen=True):
    """A part of a call, a blend or a move on one worker. Seconds since the attempt began."""

    step: int
    """In whose row it is; that of a move is the first that closed after it."""
    name: str
    kind: str
    """generate, inference, train_step, evaluate, blend or move; empty where the plan does not say it."""
    part: int
    sent_s: float
    begin_s: float
    """When the slowest worker of the part began, after it had got all rows and was free."""
    end_s: float
    replay: bool


Placed = tuple[tuple[int | None, ...], Segment]
"""Whose a segment was; None where that is not known."""


class Beside(msgspec.Struct, frozen=True):
    """Outputs or a shard that were written behind the work, or what was let go of at a call's end. Seconds since the
    attempt began."""

    kind: Literal["spill", "save", "release"]
    name: str
    """The call that made the outputs, or at whose end something was let go; the role that was saved."""
    step: int
    begin_s: float
    end_s: float


class Lane(msgspec.Struct, frozen=True):
    """A worker of an attempt in the time that is shown."""

    worker: int | None
    """None: of parts of which nobody has said who had them."""
    host: str
    idle: float
    """Share of the time in which it executed nothing."""
    segments: list[Segment]
    beside: list[Beside]
    """Spills and saves behind the work, and what it let go of within its calls; idle says nothing of them."""
    memory: list[BytesHeld]
    """What its models held on its device, as far as it has told it."""
    resident: list[BytesHeld]
    """What its processes had in memory, as its agent saw it."""
    gpu: list[BytesHeld]
    """What was in use on its GPU, by whomever."""
    unfinished: list[Segment] = []
    """What it had under way as the attempt ended."""


class Link(msgspec.Struct, frozen=True):
    """A link of a step's critical path: what ended last before the next one began."""

    name: str
    step: int
    """Whose call it is: that of another step may be in the way."""
    part: int
    begin_s: float
    waited_s: float
    """From the end of the link before, or the step's opening, until it began: messages, rows, files, other work."""
    seconds: float


class StepTime(msgspec.Struct, frozen=True):
    """A step from its opening to its close. Steps may overlap."""

    step: int
    open_s: float
    close_s: float
    critical: list[Link]
    after_s: float
    """From the last link's end to the close."""
    idle: dict[int, float]
    """Worker → share of the step in which it executed nothing."""


class AttemptTime(msgspec.Struct, frozen=True):
    """What an attempt did from `begin_s` to `end_s`. It began `began` seconds after 1970."""

    attempt: int
    began: float
    begin_s: float
    end_s: float
    steps: list[StepTime]
    lanes: list[Lane]
    pauses: list[tuple[float, float]]


class Timeline(msgspec.Struct, frozen=True):
    """The JSON of `hpcrl inspect RUN timeline --json`. `unplaced`: attempts of which nothing says who had what."""

    run_dir: str
    attempts: list[AttemptTime]
    missing: list[int]
    """Steps among them that closed and left no row of costs."""
    unplaced: list[int]
    calls: list[str] = []
    """Those of the newest of these attempts' plan, in its order."""


def timeline(reader: RunReader, asked: str | None = None) -> Timeline:
    """Of the steps asked for (12, 10-20, 10-, all), by default of the last few.

    Raises ConfigurationError, naming what there is, for what is none of them, or where no step has closed yet.
    """
    closed = sorted({row["step"] for row in reader.rows()})
    if not closed:
        raise ConfigurationError(["no step has closed yet."], "Wait for the first; hpcrl status says how far it is.")
    wanted = closed[-LAST_STEPS:] if asked is None else among(closed, asked, "--steps", "is none that has closed")
    found = timeline_of(
        str(reader.run.root), reader.attempts, wanted, lambda number, window: _told(reader.attempts[number], window)
    )
    unplaced = [it.attempt for it in found.attempts if not reader.attempts[it.attempt].says_who]
    return msgspec.structs.replace(found, unplaced=unplaced)


class Executed(Protocol):
    """What an attempt has executed, on whom: as its directory tells it, or a simulation."""

    @property
    def number(self) -> int: ...

    @property
    def plan(self) -> Planned: ...

    @property
    def activity(self) -> Activity: ...

    def costs(self) -> Sequence[StepCost]:
        """All of its rows."""
        ...

    def made(self) -> Iterator[Made]:
        """All parts of calls, and moves, that it has executed."""
        ...

    def host_of(self, rank: int) -> str: ...


class Memory(NamedTuple):
    """What was told of workers' memory, by worker."""

    held: Mapping[int, list[BytesHeld]]
    used: Mapping[int, Used]


NOTHING_TOLD = Memory({}, {})


def timeline_of(
    root: str,
    attempts: Mapping[int, Executed],
    steps: Iterable[int],
    memory: Callable[[int, Window], Memory] = lambda _number, _window: NOTHING_TOLD,
) -> Timeline:
    """Of these steps, each as the newest attempt had it that closed it. `memory` is that of an attempt in a window."""
    chosen, found = set(steps), dict[int, tuple[int, StepCost]]()
    for number, attempt in sorted(attempts.items()):
        found |= {row.step: (number, row) for row in attempt.costs() if row.step in chosen}
    by_attempt = groupby(sorted(found.values(), key=lambda it: (it[0], it[1].step)), key=lambda it: it[0])
    times = [_attempt(attempts[number], [row for _, row in rows], memory) for number, rows in by_attempt]
    calls = [*attempts[times[-1].attempt].plan.call_named] if times else []
    return Timeline(root, times, sorted(chosen - found.keys()), [], calls)


def _told(attempt: AttemptReader, window: Window) -> Memory:
    clocks = read_clocks(attempt.run, attempt.number)
    return Memory(read_held(attempt, clocks, window), read_used(attempt.run, attempt.number, clocks.ahead, window))


def _attempt(attempt: Executed, rows: Sequence[StepCost], memory: Callable[[int, Window], Memory]) -> AttemptTime:
    """Of other steps something may have been executed in the same time."""
    begin_s = min(row.at_s - row.seconds for row in rows)
    end_s = max(row.at_s for row in rows)
    unfinished = _unfinished(attempt, rows[-1])
    if unfinished:
        end_s = min(max(end_s, *(it.end_s for _, it in unfinished)), end_s + (end_s - begin_s))
    segments = ((it.ranks or (None,), _segment(attempt, it)) for it in attempt.made() if it.span.ended_s > begin_s)
    placed = [it for it in segments if it[1].begin_s < end_s]
    began = round(rows[-1].time - rows[-1].at_s, 3)
    window = (began, begin_s, end_s)
    lanes = _lanes(attempt, placed, unfinished, window, memory(attempt.number, window))
    ended = Ordered([it for _, it in placed])
    covered = {lane.worker: Covered(lane.segments) for lane in lanes if lane.worker is not None}
    return AttemptTime(
        attempt=attempt.number,
        began=began,
        begin_s=round(begin_s, 4),
        end_s=end_s,
        steps=[_step(row, ended, covered) for row in rows],
        lanes=lanes,
        pauses=[pause for row in rows for pause in row.pauses],
    )


def _lanes(
    attempt: Executed, placed: Iterable[Placed], unfinished: Iterable[Placed], window: Window, memory: Memory
) -> list[Lane]:
    """Of all workers, and of nobody where it is not known whose something was."""
    _, begin_s, end_s = window
    own, left, known = _by_worker(placed), _by_worker(unfinished), range(len(attempt.plan.workers))
    beside = _beside(attempt, begin_s, end_s)
    lanes = []
    for rank in sorted({*known, *own, *left}, key=lambda rank: (rank is None, rank)):
        number = -1 if rank is None else rank
        segments = sorted(own.get(rank, []), key=lambda it: (it.begin_s, it.end_s))
        worked = sorted([*segments, *left.get(rank, [])], key=lambda it: it.begin_s)
        idle, host = Covered(worked).idle(begin_s, end_s), "" if rank is None else attempt.host_of(rank)
        at = memory.used.get(number, Used())
        told = (beside.get(number, []), memory.held.get(number, []), at.resident, at.gpu, left.get(rank, []))
        lanes.append(Lane(rank, host, idle, segments, *told))
    return lanes


def _by_worker(placed: Iterable[Placed]) -> dict[int | None, list[Segment]]:
    found: dict[int | None, list[Segment]] = {}
    for ranks, segment in placed:
        for rank in ranks:
            found.setdefault(rank, []).append(segment)
    return found


def _unfinished(attempt: Executed, row: StepCost) -> list[Placed]:
    """What an attempt that has ended had under way then, where this is the row of the step that it closed last."""
    activity = attempt.activity
    began, ended, closed = activity.began, activity.last, activity.closed
    if not activity.ending or began is None or ended is None or not closed or closed[-1].step != row.step:
        return []
    # A worker does one call at a time: the one that it said it was at, or the one that it was sent first.
    order = sorted(activity.under_way, key=lambda it: it.since)
    at = {rank: it for it in reversed(order) for rank in it.ranks} | {
        rank: it for it in reversed(order) for rank in it.executing
    }
    found: list[Placed] = []
    for it in order:
        at_it: tuple[int | None, ...] = tuple(rank for rank in it.ranks if at[rank] is it) if it.ranks else (None,)
        if not at_it:
            continue
        since_s, end_s = round(it.since - began, 4), round(ended - began, 4)
        kind = attempt.plan.kind(it.call)
        found.append((at_it, Segment(it.step, it.call, kind, it.part, since_s, since_s, end_s, it.replay)))
    return found


def _segment(attempt: Executed, made: Made) -> Segment:
    span = made.span
    begin_s = round(max(span.sent_s, span.ended_s - span.seconds), 4)
    kind = attempt.plan.kind(made.call)
    return Segment(made.step, made.call, kind, span.part, span.sent_s, begin_s, span.ended_s, span.replay)


def _beside(attempt: Executed, begin_s: float, end_s: float) -> dict[int, list[Beside]]:
    """By worker."""
    found: dict[int, list[Beside]] = {}
    for it in (it for row in attempt.costs() for it in row.beside if it.end_s > begin_s and it.begin_s < end_s):
        span = Beside(it.kind, it.name, it.step, max(begin_s, it.begin_s), min(end_s, it.end_s))
        found.setdefault(it.rank, []).append(span)
    return found


def _step(row: StepCost, ended: "Ordered", covered: Mapping[int, "Covered"]) -> StepTime:
    open_s = row.at_s - row.seconds
    links = _critical(row.step, ended.within(open_s, row.at_s), open_s)
    last_s = links[-1][1].end_s if links else open_s
    path = [
        Link(it.name, it.step, it.part, it.begin_s, round(waited, 4), round(it.end_s - it.begin_s, 4))
        for waited, it in links
    ]
    idle = {worker: of.idle(open_s, row.at_s) for worker, of in covered.items()}
    return StepTime(row.step, round(open_s, 4), row.at_s, path, round(max(0.0, row.at_s - last_s), 4), idle)


def _critical(step: int, left: Sequence[Segment], open_s: float) -> list[tuple[float, Segment]]:
    """Back from what ended last: before each link the one that ended last until it began, as far as the step was open.

    The master sends a call when the last of what it needs has ended, and a worker begins it when it is free: either
    way that is what ended last before. Each link comes with the time from the end of the one before.
    """
    links: list[tuple[float, Segment]] = []
    current = next((it for it in reversed(left) if it.step == step), None)
    while current is not None:
        left = [it for it in left if it.end_s <= current.begin_s + TIE_S and it.begin_s < current.begin_s]
        before = left[-1] if left else None
        links.append((max(0.0, current.begin_s - (open_s if before is None else before.end_s)), current))
        current = before
    return links[::-1]


class Ordered:
    """Segments by when they ended."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._segments = sorted(segments, key=lambda it: it.end_s)
        self._ends = [it.end_s for it in self._segments]

    def within(self, begin_s: float, end_s: float) -> list[Segment]:
        """Those that began and ended in this time."""
        first, last = bisect_left(self._ends, begin_s), bisect_right(self._ends, end_s + TIE_S)
        return [it for it in self._segments[first:last] if it.begin_s >= begin_s - TIE_S]


class Covered:
    """The time that segments cover, which are in the order in which they began; overlaps count once."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._begins: list[float] = []
        self._ends: list[float] = []
        for it in segments:
            if self._ends and it.begin_s <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], it.end_s)
            else:
                self._begins.append(it.begin_s)
                self._ends.append(it.end_s)

    def idle(self, begin_s: float, end_s: float) -> float:
        """The share of a time that is not covered."""
        if end_s <= begin_s:
            return 0.0
        first, last = bisect_right(self._ends, begin_s), bisect_left(self._begins, end_s)
        pairs = zip(self._begins[first:last], self._ends[first:last], strict=True)
        busy = sum(min(end, end_s) - max(begin, begin_s) for begin, end in pairs)
        return round(1 - busy / (end_s - begin_s), 4)

"""Runs of format 7, read as those of today.

Their masters wrote an event of all that is only added up now, and no `live.json`; their rows of costs had names in
them; their workers wrote an event as they began a call.
"""

import re
from collections.abc import Mapping

import msgspec

from hpcrl.cost_fold import CostFold
from hpcrl.costs import CallCost, Live, Seen, Span, StepCost, UnderWay
from hpcrl.event_log import Entry
from hpcrl.events import AttemptEnded, Event, StepClosed, WorkerEnded
from hpcrl.figures import Figures, packed
from hpcrl.progress import JournalWritten, PartExecuted, PartSent, PartSpilled, Progress, ShardSaved

TAGS = frozenset({"sent", "executed", "moved", "spilled", "journalled", "shard", "execute"})
"""Names of events that are written no more."""
_LINE = re.compile(rb'"event":"execute"')


class _Sent(PartSent, frozen=True, tag_field="event", tag="sent"):
    pass


class _Executed(PartExecuted, frozen=True, tag_field="event", tag="executed"):
    pass


class _Spilled(PartSpilled, frozen=True, tag_field="event", tag="spilled"):
    pass


class _Journalled(JournalWritten, frozen=True, tag_field="event", tag="journalled"):
    pass


class _Shard(ShardSaved, frozen=True, tag_field="event", tag="shard"):
    pass


class _Moved(msgspec.Struct, frozen=True, tag_field="event", tag="moved"):
    version: int
    role: str
    replica: int
    ranks: tuple[int, ...]
    seconds: float
    waited_s: float
    slowest: int = -1
    workers_s: float = 0.0

    def executed(self) -> PartExecuted:
        what = self.version, f"{self.role}@{self.replica}", 0, self.ranks, self.seconds, self.waited_s
        return PartExecuted(*what, slowest=self.slowest, workers_s=self.workers_s)


class _Begun(msgspec.Struct, frozen=True, tag_field="event", tag="execute"):
    """What a worker wrote."""

    step: int
    call: str
    part: int


class _Stamp(msgspec.Struct, frozen=True):
    time: float
    mono: float = 0.0


class _Call(msgspec.Struct, frozen=True):
    spans: tuple[Span, ...]
    workers_s: float
    tokens: int = 0
    bytes: int = 0
    figures: Figures | None = None
    slowest: Figures | None = None

    def cost(self) -> CallCost:
        figures = (() if it is None else packed(it) for it in (self.figures, self.slowest))
        return CallCost(self.spans, self.workers_s, self.tokens, self.bytes, *figures)


class _Row(msgspec.Struct, frozen=True):
    step: int
    time: float
    at_s: float
    seconds: float
    samples: int
    calls: dict[str, _Call]
    events: int
    phase: str = "running"
    paused: bool = False
    under_way: tuple[UnderWay, ...] = ()
    again: dict[int, tuple[Span, ...]] = {}
    pauses: tuple[tuple[float, float], ...] = ()
    seen: Seen = Seen()


AGAIN = "made again"
"""The name of parts of steps that an older attempt had closed, of which these rows do not say what they were of."""
_EVENTS = msgspec.json.Decoder(_Sent | _Executed | _Spilled | _Journalled | _Shard | _Moved)
_BEGUN = msgspec.json.Decoder(_Begun)
_STAMPS = msgspec.json.Decoder(_Stamp)
_ROWS = msgspec.json.Decoder(_Row)


def row_of(line: str) -> StepCost:
    """Raises `msgspec.DecodeError` on what is no such row."""
    row = _ROWS.decode(line)
    return StepCost(
        time=row.time,
        step=row.step,
        at_s=row.at_s,
        seconds=row.seconds,
        samples=row.samples,
        calls={call: it.cost() for call, it in row.calls.items()},
        events=row.events,
        phase=row.phase,
        paused=row.paused,
        again={step: {AGAIN: CallCost(spans, 0.0)} for step, spans in row.again.items()},
        pauses=row.pauses,
        seen=row.seen,
    )


class OlderFold:
    """What an attempt has under way, by the events behind its newest row of costs."""

    def __init__(self) -> None:
        self._fold = CostFold()
        self._newest: _Stamp | None = None

    def resume(self, line: str) -> None:
        """Its newest row, if it is one of those."""
        try:
            row = _ROWS.decode(line)
        except msgspec.DecodeError:
            return
        self._newest = _Stamp(row.time)
        self._fold.under_way = {(it.step, it.call, it.part): it for it in row.under_way}

    def feed(self, entry: Entry) -> None:
        self._fold.feed(entry)
        if isinstance(entry.event, StepClosed):
            self._fold.row(entry, 0, Seen())

    def follow(self, line: str) -> bool:
        """Whether the line is one of those."""
        try:
            at, it = _STAMPS.decode(line), _EVENTS.decode(line)
        except msgspec.DecodeError:
            return False
        progress: Progress = it.executed() if isinstance(it, _Moved) else it
        self._fold.follow(progress, at.time, at.mono)
        self._newest = at
        return True

    def live(self) -> Live | None:
        """None of an attempt of today, or one that had done nothing."""
        return None if self._newest is None else self._fold.live(self._newest.time, self._newest.mono, {})


def begun_in(line: bytes) -> tuple[int, str, int] | None:
    """Step, call and part of a worker's line, if it is one of those."""
    if not _LINE.search(line):
        return None
    try:
        it = _BEGUN.decode(line)
    except msgspec.DecodeError:
        return None
    return it.step, it.call, it.part


def unplaced(event: Event) -> str:
    """The worker of whose end this tells without what it did; empty of all else."""
    match event:
        case AttemptEnded(call=""):
            return event.who if event.who.startswith("worker-") else ""
        case WorkerEnded(call=""):
            return f"worker-{event.rank}"
    return ""


def located(event: Event, begun: Mapping[str, tuple[int, str, int]]) -> Event:
    """An end, with what the worker had begun last; masters know it themselves now."""
    if not isinstance(event, AttemptEnded | WorkerEnded) or (unit := begun.get(unplaced(event))) is None:
        return event
    return msgspec.structs.replace(event, step=unit[0], call=unit[1], part=unit[2])

"""Adds up what an attempt's events and progress, and its rows of metrics, say. Pure: no files, no clock."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from hpcrl.costs import MOVES, Beside, CallCost, Live, Ranks, Seen, Span, StepCost, UnderWay, is_of_no_step
from hpcrl.event_log import Entry
from hpcrl.events import AttemptBegun, StepClosed
from hpcrl.figures import Figures, added_up, packed
from hpcrl.phases import Phases
from hpcrl.progress import JournalWritten, PartExecuted, PartSent, PartSpilled, Progress, ShardSaved
from hpcrl.whereabouts import Doing

_Unit = tuple[int, str, int]


@dataclass
class _Costs:
    """Of one call, until its step closes."""

    spans: list[Span] = field(default_factory=list)
    workers_s: float = 0.0
    tokens: int = 0
    bytes: int = 0
    figures: list[Figures] = field(default_factory=list)
    """To be added up."""
    slowest: Figures | None = None

    def measured(self, figures: Collection[Figures]) -> None:
        self.figures += figures
        slowest = max(figures, key=_executing, default=None)
        if slowest is not None and (self.slowest is None or _executing(slowest) >= _executing(self.slowest)):
            self.slowest = slowest

    def taken(self) -> CallCost:
        if len(self.figures) > 1:
            self.figures = [added_up(self.figures)]
        figures = [packed(of) for of in (*self.figures, self.slowest) if of is not None] or [(), ()]
        return CallCost(tuple(self.spans), round(self.workers_s, 4), self.tokens, self.bytes, *figures)


@dataclass
class CostFold:
    """Of one attempt. `feed` each event, `follow` its progress; once a step has closed, `row` is what it cost."""

    phases: Phases = field(default_factory=Phases)
    attempt: int = 0
    began: float = 0.0
    """Seconds since 1970."""
    sent: dict[_Unit, float] = field(default_factory=dict)
    """By the clock that nobody sets."""
    under_way: dict[_Unit, UnderWay] = field(default_factory=dict)
    open: dict[int, dict[str, _Costs]] = field(default_factory=dict)
    told: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)
    """The workers of each part of a call that was executed."""
    ranks: Ranks = field(default_factory=dict)
    """Those of them that no row has."""
    appends: tuple[int, float] = (0, 0.0)
    beside: list[Beside] = field(default_factory=list)

    def feed(self, entry: Entry) -> None:
        self.began = self.began or entry.time
        self.phases.feed(entry)
        if isinstance(entry.event, AttemptBegun):
            self.attempt = entry.event.number

    def follow(self, progress: Progress, time: float, mono: float) -> None:
        """Both clocks, as of an event."""
        match progress:
            case PartSent() as it:
                key = it.step, it.call, it.part
                self.under_way[key] = UnderWay(*key, it.ranks, time, it.replay)
                self.sent[key] = mono
            case PartExecuted() as it:
                self._executed(it, mono)
            case PartSpilled() as it:
                self._cost(it.step, it.call).bytes += it.bytes
                self._beside("spill", it.call, it.step, it.rank, mono, it.seconds)
            case JournalWritten() as it:
                count, seconds = self.appends
                self.appends = count + 1, seconds + it.seconds
            case ShardSaved() as it:
                self._beside("save", it.role, it.step, it.rank, mono, it.seconds)

    def row(self, closed: Entry, events: int, seen: Seen) -> StepCost:
        """Of the step that this event says is closed, once it was fed; `events` bytes were written before."""
        event = closed.event
        assert isinstance(event, StepClosed), event
        calls = self.open.pop(event.step, {}) | self.open.pop(MOVES, {})
        at_s, (appends, appended_s) = self.at_s(closed.mono), self.appends
        ranks, self.ranks, self.appends = self.ranks, {}, (0, 0.0)
        beside, self.beside = tuple(self.beside), []
        return StepCost(
            time=round(closed.time, 3),
            step=event.step,
            at_s=round(at_s, 3),
            seconds=round(event.seconds, 3),
            samples=event.samples,
            calls=_taken(calls),
            events=events,
            phase=self.phases.phase,
            paused=self.phases.paused,
            again=self._again(event.step),
            ranks=ranks,
            pauses=self.phases.take_pauses(at_s),
            appends=(appends, round(appended_s, 4)),
            beside=beside,
            seen=seen,
        )

    def live(self, time: float, mono: float, doing: Mapping[int, Doing]) -> Live:
        """What is under way, and no row tells. `doing`: what each worker says that it does."""
        return Live(
            attempt=self.attempt,
            began=self.began,
            time=round(time, 3),
            at_s=round(self.at_s(mono), 3),
            under_way=tuple(_with(unit, doing) for unit in self.under_way.values()),
            open={step: _taken(calls) for step, calls in self.open.items()},
            ranks=self.ranks,
        )

    def at_s(self, mono: float) -> float:
        """Since it began."""
        return mono - (mono if self.phases.began is None else self.phases.began)

    def _executed(self, it: PartExecuted, mono: float) -> None:
        """What a part, or a move, has cost its workers."""
        key = it.step, it.call, it.part
        unit, since = self.under_way.pop(key, None), self.sent.pop(key, mono - it.waited_s)
        times = round(self.at_s(since), 4), round(self.at_s(mono), 4), round(it.seconds, 4)
        cost = self._cost(MOVES if is_of_no_step(it.call) else it.step, it.call)
        cost.spans.append(Span(it.part, *times, it.slowest, it.replay or (unit is not None and unit.replay)))
        cost.workers_s += it.workers_s or it.seconds * len(it.ranks)
        cost.tokens += it.tokens
        cost.measured(it.figures.values())
        for rank, figures in it.figures.items():
            if figures.seconds.release:
                self._beside("release", it.call, it.step, rank, mono, figures.seconds.release)
        if self.told.get((it.call, it.part)) != it.ranks:
            self.told[it.call, it.part] = it.ranks
            self.ranks.setdefault(it.call, {})[it.part] = it.ranks

    def _beside(
        self, kind: Literal["spill", "save", "release"], name: str, step: int, rank: int, mono: float, seconds: float
    ) -> None:
        """What has ended; what took no time is not told."""
        end_s = round(self.at_s(mono), 4)
        begin_s = round(end_s - seconds, 4)
        if begin_s < end_s:
            self.beside.append(Beside(kind, name, step, rank, begin_s, end_s))

    def _again(self, before: int) -> dict[int, dict[str, CallCost]]:
        """Take out what is known of older steps, which an older attempt has closed."""
        older = [step for step in self.open if MOVES < step < before]
        return {step: _taken(calls) for step in older if (calls := self.open.pop(step))}

    def _cost(self, step: int, call: str) -> _Costs:
        return self.open.setdefault(step, {}).setdefault(call, _Costs())


def _executing(figures: Figures) -> float:
    return figures.seconds.execute


def _taken(calls: Mapping[str, _Costs]) -> dict[str, CallCost]:
    return {call: cost.taken() for call, cost in calls.items()}


def _with(unit: UnderWay, doing: Mapping[int, Doing]) -> UnderWay:
    """With those of its workers that are at it."""
    key = unit.step, unit.call, unit.part
    at = (rank for rank in unit.ranks if rank in doing and doing[rank].unit == key)
    return msgspec.structs.replace(unit, executing=tuple(at))


@dataclass
class SeenFold:
    """A run's rows of metrics, added up. `feed` each of them, in order of steps."""

    newest: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    empty: int = 0
    settings: list[tuple[int, int]] = field(default_factory=list)

    def feed(self, row: Mapping[str, float]) -> Seen:
        """All rows up to this one."""
        for key in (key for key in row if key.endswith("/skipped")):
            call = key.partition("/")[0]
            self.skipped[call] = self.skipped.get(call, 0) + int(row[key])
        self.empty += "drawn" in row and row["samples"] == 0
        before = self.settings[-1][1] if self.settings else 0
        version = int(row.get("settings", before))
        if version != before:
            self.settings.append((int(row["step"]), version))
        older = {key: value for key, value in self.newest.items() if key not in row}
        self.newest |= {key: float(value) for key, value in row.items() if isinstance(value, int | float)}
        skipped = {call: count for call, count in self.skipped.items() if count}
        return Seen(older, skipped, self.empty, tuple(self.settings))

"""What an attempt is doing, from its master's events, rows of costs and `live.json`: which worker has which call.

Pure: events and rows in, values out. Knows neither files nor the clock. An event that it has no use for changes
nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hpcrl.costs import Live, StepCost, UnderWay
from hpcrl.event_log import Entry
from hpcrl.events import (
    AgentConnected,
    AttemptBegun,
    AttemptEnded,
    CallStalled,
    CallWentOn,
    RowsLeftOut,
    StepClosed,
    WorkerEnded,
    WorkersReady,
)
from hpcrl.phases import Phases

PACED = 21
"""Rows of costs that are kept: they say how fast steps go."""


@dataclass(frozen=True)
class Pace:
    """How fast steps go. Tokens are those that were generated for training."""

    seconds_per_step: float
    samples_per_s: float
    tokens_per_s: float


@dataclass
class Activity:
    """One attempt as its events tell it. Times are the master's wall clock."""

    attempt: int = 0
    recovered: str = ""
    steps: int | None = None
    """How many steps the run has, if nothing ends it before."""
    began: float | None = None
    last: float | None = None
    ready: float | None = None
    computing: WorkersReady | None = None
    """What was said once all workers were ready."""
    nodes: dict[int, str] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)
    phases: Phases = field(default_factory=Phases)
    live: Live | None = None
    """What no row of costs tells; None where that is not known, or before it has begun."""
    closed: list[StepCost] = field(default_factory=list)
    """Its newest rows of costs."""
    ending: str = ""
    stalled: dict[tuple[int, str, int], Entry] = field(default_factory=dict)
    """What was told last of parts of calls that take too long."""
    left_out: dict[str, RowsLeftOut] = field(default_factory=dict)
    """Of the rows to train on, and of those to evaluate on."""

    def feed(self, entry: Entry) -> None:
        """Take in one event."""
        when, event = entry.time, entry.event
        self.began = when if self.began is None else self.began
        self.last = max(when, self.last or when)
        self.phases.feed(entry)
        match event:
            case AttemptBegun():
                self.attempt, self.recovered, self.steps = event.number, event.recovered, event.steps
            case RowsLeftOut():
                self.left_out[event.source] = event
            case AgentConnected():
                self.nodes[event.node] = event.host
            case WorkersReady():
                self.ready, self.computing = when, event
            case CallStalled():
                self.stalled[event.step, event.call, event.part] = entry
            case CallWentOn():
                self.stalled.pop((event.step, event.call, event.part), None)
            case StepClosed():
                self.phases.take_pauses(entry.mono - (self.phases.began or 0.0))  # its row has them
            case WorkerEnded():
                self.ended[event.rank] = event.how
            case AttemptEnded():
                self.ending = f"{event.state}: {event.reason}"

    def resume(self, rows: Sequence[StepCost]) -> None:
        """Take in what the newest of these rows says of all that was before it."""
        newest = rows[-1]
        self.phases.resume(newest.phase, newest.at_s, newest.paused)
        self.close(rows)

    def close(self, rows: Sequence[StepCost]) -> None:
        """Steps have closed. A row that is known already changes nothing."""
        known = {row.step for row in self.closed}
        self.closed = [*self.closed, *(row for row in rows if row.step not in known)][-PACED:]
        if self.closed:
            self.last = max(self.closed[-1].time, self.last or 0.0)

    def show(self, live: Live | None) -> None:
        """What was under way, as far as the rows do not tell of it."""
        for row in self.closed:
            live = live and live.after(row)
        self.live = live
        if live is not None and not self.ending:
            self.last = max(live.time, self.last or live.time)

    @property
    def phase(self) -> str:
        return "ended" if self.ending else self.phases.phase

    @property
    def paused(self) -> bool:
        return self.phases.paused

    @property
    def under_way(self) -> Sequence[UnderWay]:
        """Parts of calls, the one that was sent first before others."""
        return () if self.live is None else self.live.under_way

    @property
    def ranks(self) -> list[int]:
        """The workers that have been heard of."""
        sent = {rank for unit in self.under_way for rank in unit.ranks}
        ready = 0 if self.computing is None else self.computing.workers
        return sorted({*range(ready), *sent, *self.ended})

    def doing(self, rank: int) -> str:
        """What a worker does now, in a few words."""
        if rank in self.ended:
            return f"ended: {self.ended[rank]}"
        mine = [unit for unit in self.under_way if rank in unit.ranks]
        for unit in sorted(mine, key=lambda unit: rank not in unit.executing):
            return str(unit)
        return "starting" if self.ready is None else "idle"

    def pace(self) -> Pace | None:
        """How fast the last steps went; None before two of them have ended."""
        if len(self.closed) < 2:
            return None
        first, *steps = self.closed
        seconds = max(1e-9, steps[-1].at_s - first.at_s)
        samples, tokens = sum(step.samples for step in steps), sum(step.tokens for step in steps)
        return Pace(seconds / len(steps), samples / seconds, tokens / seconds)


def fold(entries: Iterable[Entry]) -> Activity:
    """An attempt's activity from all of its events."""
    activity = Activity()
    for entry in entries:
        activity.feed(entry)
    return activity

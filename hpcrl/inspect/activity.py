"""What an attempt is doing, folded from the master's events: which worker has which call, and what the calls cost.

Pure: events in, values out. Knows neither files nor the clock. An event that it has no use for changes nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from hpcrl.event_log import Entry
from hpcrl.events import (
    AgentConnected,
    AttemptBegun,
    AttemptEnded,
    CommandHeard,
    DrainBegun,
    NodeLeaving,
    ParametersMoved,
    PartExecuted,
    PartSent,
    RowsLeftOut,
    StepClosed,
    StepExtended,
    StepOpened,
    WorkerEnded,
    WorkersReady,
)

EVALUATION = "eval_"
"""What the names of evaluation calls begin with."""


@dataclass(frozen=True)
class Busy:
    """A part of a call that a worker has been sent and has not executed yet."""

    call: str
    step: int
    part: int
    since: float
    replay: bool = False

    def __str__(self) -> str:
        return f"{'replays ' if self.replay else ''}{self.call}, step {self.step}"


@dataclass
class CallCost:
    """What one call of the graph has cost so far: parts executed, and seconds of workers."""

    parts: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Pace:
    """How fast steps go. Tokens are those that were generated for training."""

    seconds_per_step: float
    samples_per_s: float
    tokens_per_s: float


@dataclass
class StepSeen:
    """What is known of a step; the tokens that its calls produced, by call, evaluations apart."""

    samples: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    ended: float | None = None

    @property
    def generated(self) -> int:
        """The tokens of the call that produced most: all others are about the same ones."""
        return max(self.tokens.values(), default=0)


@dataclass
class Activity:
    """One attempt as its events tell it. Times are the master's wall clock."""

    attempt: int = 0
    phase: str = "starting"
    recovered: str = ""
    steps: int | None = None
    """How many steps the run has, if nothing ends it before."""
    began: float | None = None
    last: float | None = None
    ready: float | None = None
    nodes: dict[int, str] = field(default_factory=dict)
    busy: dict[int, list[Busy]] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)
    costs: dict[str, CallCost] = field(default_factory=dict)
    seen: dict[int, StepSeen] = field(default_factory=dict)
    paused: bool = False
    ending: str = ""
    left_out: dict[str, RowsLeftOut] = field(default_factory=dict)
    """Of the rows to train on, and of those to evaluate on."""

    def feed(self, entry: Entry) -> None:
        """Take in one event."""
        when, event = entry
        self.began = when if self.began is None else self.began
        self.last = when
        match event:
            case AttemptBegun():
                self.attempt, self.recovered, self.steps = event.number, event.recovered, event.steps
                self.paused = event.paused
            case RowsLeftOut():
                self.left_out[event.source] = event
            case AgentConnected():
                self.nodes[event.node] = event.host
            case WorkersReady():
                self.phase, self.ready = "running", when
                self.busy = {rank: [] for rank in range(event.workers)}
            case StepOpened():
                self._step(event.step).samples = event.samples
            case StepExtended():
                self._step(event.step).samples += event.samples
            case PartSent():
                unit = Busy(event.call, event.step, event.part, when, event.replay)
                for rank in event.ranks:
                    self.busy.setdefault(rank, []).append(unit)
            case PartExecuted():
                self._executed(event)
            case ParametersMoved():
                self._ended(f"{event.role}@{event.replica}", event.version, 0, event.ranks, event.seconds)
            case StepClosed():
                self._step(event.step).ended = when
            case CommandHeard(command="pause" | "continue" as command):
                self.paused = command == "pause"
            case CommandHeard(command="finish"):
                self.phase = "finishing"
            case DrainBegun() | NodeLeaving():
                self.phase = "draining"
            case WorkerEnded():
                self.ended[event.rank] = event.how
            case AttemptEnded():
                self.phase, self.ending = "ended", f"{event.state}: {event.reason}"

    @property
    def ranks(self) -> list[int]:
        """The workers that have been heard of."""
        return sorted(self.busy.keys() | self.ended.keys())

    def doing(self, rank: int) -> str:
        """What a worker does now, in a few words."""
        if rank in self.ended:
            return f"ended: {self.ended[rank]}"
        if self.busy.get(rank):
            return str(self.busy[rank][0])
        return "starting" if self.ready is None else "idle"

    def pace(self, over: int = 20) -> Pace | None:
        """How fast the last steps went; None before two of them have ended."""
        ended = [(seen.ended, seen) for _, seen in sorted(self.seen.items()) if seen.ended is not None][-(over + 1) :]
        if len(ended) < 2:
            return None
        seconds = max(1e-9, ended[-1][0] - ended[0][0])
        steps = [seen for _, seen in ended[1:]]
        samples, tokens = sum(seen.samples for seen in steps), sum(seen.generated for seen in steps)
        return Pace(seconds / len(steps), samples / seconds, tokens / seconds)

    def _step(self, step: int) -> StepSeen:
        return self.seen.setdefault(step, StepSeen())

    def _ended(self, call: str, step: int, part: int, ranks: tuple[int, ...], seconds: float) -> None:
        """What these workers did is over."""
        for rank in ranks:
            units = self.busy.get(rank, [])
            self.busy[rank] = [unit for unit in units if (unit.call, unit.step, unit.part) != (call, step, part)]
        cost = self.costs.setdefault(call, CallCost())
        cost.parts += 1
        cost.seconds += seconds * len(ranks)

    def _executed(self, event: PartExecuted) -> None:
        self._ended(event.call, event.step, event.part, event.ranks, event.seconds)
        if not event.call.startswith(EVALUATION):
            tokens = self._step(event.step).tokens
            tokens[event.call] = tokens.get(event.call, 0) + event.tokens


def fold(entries: Iterable[Entry]) -> Activity:
    """An attempt's activity from all of its events."""
    activity = Activity()
    for entry in entries:
        activity.feed(entry)
    return activity

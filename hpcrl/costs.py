"""What the steps of an attempt cost, and how far it is: rows of `costs.jsonl`, folded from its master's events.

The master writes a row when a step closes. A reader takes the newest one and the events behind `events`, and knows as
much as if it had read all; what workers measured is in rows alone. Pure: no files, no clock. A row may be lost (a
kill); nothing is decided by one.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from hpcrl.event_log import Entry
from hpcrl.events import (
    AttemptBegun,
    CommandHeard,
    DrainBegun,
    NodeLeaving,
    ParametersMoved,
    PartExecuted,
    PartSent,
    PartSpilled,
    StepClosed,
    StepExtended,
    StepOpened,
    WorkersReady,
)

EVALUATION = "eval_"
"""What the names of evaluation calls begin with."""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A part of a call, or a move, from when it was sent until all of its workers had replied."""

    part: int
    sent_s: float
    """Since the attempt began."""
    ended_s: float
    seconds: float
    """Of its slowest worker."""
    slowest: int
    """Which one that was; -1 where nobody has said it."""
    replay: bool = False


class Seconds(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the time of a worker goes in a call, by its device's clock. `collective` lies within the others; what of
    `execute` is in none of them is the algorithm's own work on the host."""

    gather: float = 0.0
    """From the request until all of its rows were here; before the call began."""
    execute: float = 0.0
    prefill: float = 0.0
    """Reading prompts."""
    decode: float = 0.0
    """Making tokens after these."""
    forward: float = 0.0
    """Passes through a model for what it predicts."""
    backward: float = 0.0
    optimizer: float = 0.0
    """Adding gradients up over ranks, and updates."""
    collective: float = 0.0
    """In operations of several ranks, and waiting for these."""

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})

    def rounded(self) -> "Seconds":
        """To a tenth of a millisecond. What is nothing is left at its default, which no line has."""
        rounded = {name: round(getattr(self, name), 4) for name in self.__struct_fields__}
        return Seconds(**{name: seconds for name, seconds in rounded.items() if seconds})


class Figures(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker measured as it executed a part of a call; of several, sums, but for what is a maximum."""

    seconds: Seconds = Seconds()
    tokens: int = 0
    """That went through a model, each as often as it did; those of a prompt that is shared once."""
    longest: int = 0
    """Tokens of the longest row; a maximum."""
    micro_batches: int = 0
    """Forward passes, in training or not."""
    rounds: int = 0
    """Of generation: how often rows got a token each."""
    sent: int = 0
    """Bytes given to other ranks in collectives and messages."""
    flops: float = 0.0
    """Operations of the models' mathematics, as `hpcrl.placement.flops` counts them; 0 where it cannot."""
    peak: int = 0
    """Bytes in use at most: on a GPU of the process's tensors, else of its memory. A maximum."""
    held: int = 0
    """The same at the call's end. A maximum."""

    def __add__(self, other: "Figures") -> "Figures":
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in self.__struct_fields__)
        return Figures(**{name: max(one, two) if name in MAXIMA else one + two for name, one, two in pairs})

    def rounded(self) -> "Figures":
        """So that a row stays short: operations to five digits, and nothing of what there was nothing."""
        counts = {name: getattr(self, name) for name in self.__struct_fields__ if getattr(self, name)}
        whole = Figures(**(counts | {"seconds": self.seconds.rounded()}))
        return msgspec.structs.replace(whole, flops=float(f"{self.flops:.5g}")) if self.flops else whole


MAXIMA = ("longest", "peak", "held")


class CallCost(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call has cost in a step; of a move (`actor@1`), since the step before closed."""

    spans: tuple[Span, ...]
    workers_s: float
    """Of all workers."""
    tokens: int = 0
    """Of the longest key that it produced."""
    bytes: int = 0
    """Spilled."""
    figures: Figures | None = None
    """Of all workers; None where none has measured anything."""
    slowest: Figures | None = None
    """Of the worker that took longest."""


class Total(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call, or a move, has cost since its attempt began."""

    parts: int = 0
    workers_s: float = 0.0
    tokens: int = 0
    bytes: int = 0
    flops: float = 0.0
    """As `Figures`; of replays, too."""
    peak: int = 0
    """As `Figures`: the largest."""

    def __add__(self, other: "Total") -> "Total":
        return Total(
            self.parts + other.parts,
            self.workers_s + other.workers_s,
            self.tokens + other.tokens,
            self.bytes + other.bytes,
            self.flops + other.flops,
            max(self.peak, other.peak),
        )


class UnderWay(msgspec.Struct, frozen=True, array_like=True):
    """A part of a call that was sent to these workers, at `since`, and is not executed yet. Of a move: `actor@1`."""

    step: int
    call: str
    part: int
    ranks: tuple[int, ...]
    since: float
    replay: bool = False

    def __str__(self) -> str:
        return f"{'replays ' if self.replay else ''}{self.call}, step {self.step}"


class Seen(msgspec.Struct, frozen=True, omit_defaults=True):
    """What all of the run's rows of metrics say together, up to this step."""

    newest: dict[str, float] = {}
    """The newest value of each metric that this step's row lacks: evaluations are not in every row."""
    skipped: dict[str, int] = {}
    """train_step → its updates that were not made, because their gradients were not finite."""
    empty: int = 0
    """Steps that trained on nothing, because no group that they drew had samples of different scores."""
    settings: tuple[tuple[int, int], ...] = ()
    """(step, version) where another version of the settings counted than in the step before."""


class StepCost(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row, in an attempt that closed this step. Times are the master's."""

    step: int
    time: float
    """Seconds since 1970, when it closed."""
    at_s: float
    """The same since the attempt began."""
    seconds: float
    """Since it was opened."""
    samples: int
    calls: dict[str, CallCost]
    totals: dict[str, Total]
    events: int
    """Bytes of the master's events up to here."""
    phase: str = "running"
    paused: bool = False
    under_way: tuple[UnderWay, ...] = ()
    """Of later steps."""
    again: dict[int, tuple[Span, ...]] = {}
    """Older steps → what was made again of them since the row before. They close no more."""
    pauses: tuple[tuple[float, float], ...] = ()
    """From when to when it was paused, since the attempt began; those since the row before."""
    seen: Seen = Seen()

    @property
    def tokens(self) -> int:
        """Generated for training: those of the call that produced most, since all others are about the same ones."""
        counts = (cost.tokens for call, cost in self.calls.items() if not call.startswith(EVALUATION))
        return max(counts, default=0)


@dataclass
class _Costs:
    """Of one call, until its step closes."""

    spans: list[Span] = field(default_factory=list)
    workers_s: float = 0.0
    tokens: int = 0
    bytes: int = 0
    figures: Figures | None = None
    slowest: Figures | None = None

    def measured(self, figures: Collection[Figures]) -> Figures:
        """All together."""
        whole = sum(figures, Figures())
        self.figures = whole if self.figures is None else self.figures + whole
        slowest = max((*figures, self.slowest or Figures()), key=lambda of: of.seconds.execute)
        self.slowest = slowest
        return whole

    def taken(self) -> CallCost:
        measured = [None if of is None else of.rounded() for of in (self.figures, self.slowest)]
        return CallCost(tuple(self.spans), round(self.workers_s, 4), self.tokens, self.bytes, *measured)


MOVES = -1
"""Whose step is not said: what is moved was made by an older one, which may be closed."""


@dataclass
class CostFold:
    """An attempt's events, added up. `feed` each of them; once a step has closed, `row` is what it cost."""

    phase: str = "starting"
    paused_since: float | None = None
    """Since it began; None while nobody wants it paused."""
    pauses: list[tuple[float, float]] = field(default_factory=list)
    began: float | None = None
    """By the clock that nobody sets, as is when a part was sent."""
    sent: dict[tuple[int, str, int], float] = field(default_factory=dict)
    under_way: dict[tuple[int, str, int], UnderWay] = field(default_factory=dict)
    totals: dict[str, Total] = field(default_factory=dict)
    samples: dict[int, int] = field(default_factory=dict)
    open: dict[int, dict[str, _Costs]] = field(default_factory=dict)

    def feed(self, entry: Entry) -> None:
        event = entry.event
        self.began = entry.mono if self.began is None else self.began
        match event:
            case AttemptBegun():
                self.paused_since = 0.0 if event.paused else None
            case StepOpened():
                self.samples[event.step] = event.samples
            case StepExtended():
                self.samples[event.step] = self.samples.get(event.step, 0) + event.samples
            case PartSent():
                unit = UnderWay(event.step, event.call, event.part, event.ranks, entry.time, event.replay)
                key = unit.step, unit.call, unit.part
                self.under_way[key], self.sent[key] = unit, entry.mono
            case PartExecuted():
                cost = self._ended(entry.mono, event.step, event.step, event.call, event.part, event)
                cost.tokens += event.tokens
                self._add(event.call, Total(tokens=event.tokens))
            case ParametersMoved():
                self._ended(entry.mono, MOVES, event.version, f"{event.role}@{event.replica}", 0, event)
            case PartSpilled():
                self._cost(event.step, event.call).bytes += event.bytes
                self._add(event.call, Total(bytes=event.bytes))
            case WorkersReady():
                self.phase = "running"
            case CommandHeard(command="pause" | "continue" as command):
                self._pause(entry.mono - self.began, is_paused=command == "pause")
            case CommandHeard(command="finish"):
                self.phase = "finishing"
            case DrainBegun() | NodeLeaving():
                self.phase = "draining"

    def measured(self, step: int, call: str, figures: Collection[Figures]) -> None:
        """What the workers of a part have measured, which is in no event."""
        if figures:
            whole = self._cost(step, call).measured(figures)
            self._add(call, Total(flops=whole.flops, peak=whole.peak))

    def resume(self, row: StepCost) -> None:
        """Take in what a row says of all that was before it."""
        self.phase, self.totals, self.pauses = row.phase, dict(row.totals), []
        self.paused_since = row.at_s if row.paused else None
        self.under_way = {(unit.step, unit.call, unit.part): unit for unit in row.under_way}

    def row(self, closed: Entry, events: int, seen: Seen) -> StepCost:
        """Of the step that this event says is closed, once it was fed; `events` bytes were written before."""
        event = closed.event
        assert isinstance(event, StepClosed) and self.began is not None, event
        calls = self.open.pop(event.step, {}) | self.open.pop(MOVES, {})
        again = self._again(event.step)
        at_s, paused = closed.mono - self.began, self.paused
        self._pause(at_s, paused)
        pauses, self.pauses = tuple(self.pauses), []
        return StepCost(
            step=event.step,
            time=round(closed.time, 3),
            at_s=round(closed.mono - self.began, 3),
            seconds=round(event.seconds, 3),
            samples=self.samples.pop(event.step, 0),
            calls={call: cost.taken() for call, cost in calls.items()},
            totals={
                call: msgspec.structs.replace(it, workers_s=round(it.workers_s, 3), flops=float(f"{it.flops:.6g}"))
                for call, it in self.totals.items()
            },
            events=events,
            phase=self.phase,
            paused=paused,
            again=again,
            pauses=pauses,
            under_way=tuple(self.under_way.values()),
            seen=seen,
        )

    @property
    def paused(self) -> bool:
        return self.paused_since is not None

    def _again(self, before: int) -> dict[int, tuple[Span, ...]]:
        """Take out what is known of older steps, which an older attempt has closed."""
        older = [step for step in self.open if MOVES < step < before]
        spans = {step: tuple(span for it in self.open.pop(step).values() for span in it.spans) for step in older}
        return {step: each for step, each in spans.items() if each}

    def _pause(self, at_s: float, is_paused: bool) -> None:
        """What it was up to now is told; from now on it is paused, or not."""
        if self.paused_since is not None:
            self.pauses.append((round(self.paused_since, 3), round(at_s, 3)))
        self.paused_since = at_s if is_paused else None

    def _cost(self, step: int, call: str) -> _Costs:
        return self.open.setdefault(step, {}).setdefault(call, _Costs())

    def _add(self, call: str, more: Total) -> None:
        self.totals[call] = self.totals.get(call, Total()) + more

    def _ended(
        self, when: float, of: int, step: int, call: str, part: int, event: PartExecuted | ParametersMoved
    ) -> _Costs:
        """What a part, or a move, has cost its workers goes to the step `of`."""
        assert self.began is not None
        key = step, call, part
        unit, since = self.under_way.pop(key, None), self.sent.pop(key, when - event.waited_s)
        workers_s = event.workers_s or event.seconds * len(event.ranks)
        cost, replay = self._cost(of, call), unit is not None and unit.replay
        sent_s, ended_s = round(since - self.began, 4), round(when - self.began, 4)
        cost.spans.append(Span(part, sent_s, ended_s, round(event.seconds, 4), event.slowest, replay))
        cost.workers_s += workers_s
        self._add(call, Total(1, workers_s))
        return cost


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


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(StepCost)


def encode(row: StepCost) -> bytes:
    """A line."""
    return _ENCODER.encode(row) + b"\n"


def decode(line: bytes | str) -> StepCost:
    """Raises `msgspec.DecodeError` on what is damaged."""
    return _DECODER.decode(line)

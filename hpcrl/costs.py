"""What the steps of an attempt cost, and how far it is: rows of `costs.jsonl`, and `live.json`.

The master writes a row when a step closes, and replaces `live.json` while something changes: together they say all that
is known of calls. A kill may lose the last row, or the last second of what was under way; nothing is decided by either.
Pure: no files, no clock.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import msgspec

from hpcrl.figures import Figures, Packed, unpacked
from hpcrl.whereabouts import BEFORE_LOOP

EVALUATION = "eval_"
"""What the names of evaluation calls begin with."""
MOVES = -1
"""The step of moves: what is moved was made by an older one, which may be closed."""

Ranks = dict[str, dict[int, tuple[int, ...]]]
"""Call → part → the workers that have it."""


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


class CallCost(msgspec.Struct, frozen=True, array_like=True):
    """What a call has cost in a step; of a move (`actor@1`), since the step before closed."""

    spans: tuple[Span, ...]
    workers_s: float
    """Of all workers."""
    tokens: int = 0
    """Of the longest key that it produced; a key of texts has characters instead."""
    bytes: int = 0
    """Spilled."""
    measured: Packed = ()
    of_slowest: Packed = ()

    @property
    def generated(self) -> int:
        """Tokens that it generated; 0 of a call that did not decode, where that is known."""
        figures = self.figures
        return self.tokens if figures is None or figures.rounds else 0

    @property
    def figures(self) -> Figures | None:
        """Of all workers; None where none has measured anything."""
        return unpacked(self.measured)

    @property
    def slowest(self) -> Figures | None:
        """Of the worker that took longest."""
        return unpacked(self.of_slowest)


class Beside(msgspec.Struct, frozen=True, array_like=True):
    """What a worker wrote behind its work, or let go of at a call's end, at a time since the attempt began."""

    kind: Literal["spill", "save", "release"]
    name: str
    """The call whose outputs were spilled, or at whose end something was let go; the role that was saved."""
    step: int
    rank: int
    begin_s: float
    end_s: float
    """As the master heard of it."""


class Total(msgspec.Struct, frozen=True):
    """What a call, or a move, has cost in many steps."""

    parts: int = 0
    workers_s: float = 0.0
    tokens: int = 0
    """Generated."""
    bytes: int = 0
    flops: float = 0.0
    """As `Figures`; of replays, too."""
    peak: int = 0
    """As `Figures`: the largest."""

    def __add__(self, more: CallCost) -> "Total":
        figures = more.figures or Figures()
        return Total(
            self.parts + len(more.spans),
            self.workers_s + more.workers_s,
            self.tokens + more.generated,
            self.bytes + more.bytes,
            self.flops + figures.flops,
            max(self.peak, figures.peak),
        )

    def joined(self, other: "Total") -> "Total":
        """Both together."""
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in self.__struct_fields__)
        return Total(**{name: max(one, two) if name == "peak" else one + two for name, one, two in pairs})


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

    time: float
    """Seconds since 1970, when it closed."""
    step: int
    at_s: float
    """The same since the attempt began."""
    seconds: float
    """Since it was opened."""
    samples: int
    calls: dict[str, CallCost]
    events: int
    """Bytes of the master's events up to here."""
    phase: str = "running"
    paused: bool = False
    again: dict[int, dict[str, CallCost]] = {}
    """Older steps → what was made again of them since the row before. They close no more."""
    ranks: Ranks = {}
    """Of parts that no row of the attempt has told of, or that others have now."""
    pauses: tuple[tuple[float, float], ...] = ()
    """From when to when it was paused, since the attempt began; those since the row before."""
    appends: tuple[int, float] = (0, 0.0)
    """How often the journal was appended to since the row before, and seconds of that."""
    beside: tuple[Beside, ...] = ()
    """What ended since the row before."""
    seen: Seen = Seen()

    @property
    def tokens(self) -> int:
        """As `generated`."""
        return generated(self.calls)


def generated(calls: Mapping[str, CallCost]) -> int:
    """Tokens that were generated for training: of the call that made most, since others may be about the same ones."""
    return max((cost.generated for call, cost in calls.items() if not call.startswith(EVALUATION)), default=0)


class UnderWay(msgspec.Struct, frozen=True, array_like=True):
    """A part of a call that was sent to these workers, at `since`, and is not executed yet. Of a move: `actor@1`."""

    step: int
    call: str
    part: int
    ranks: tuple[int, ...]
    since: float
    replay: bool = False
    executing: tuple[int, ...] = ()
    """Those of them that say that they are at it."""

    def __str__(self) -> str:
        return f"{'replays ' if self.replay else ''}{self.call}, step {self.step}"


class Live(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an attempt has under way, and what of its calls no row tells yet."""

    attempt: int
    began: float
    """When it did, as its first event says."""
    time: float
    """Seconds since 1970, when this was so."""
    at_s: float
    """The same since the attempt began."""
    under_way: tuple[UnderWay, ...] = ()
    open: dict[int, dict[str, CallCost]] = {}
    """Steps that have not closed; MOVES has moves."""
    ranks: Ranks = {}
    """As in `StepCost`."""

    def after(self, row: StepCost) -> "Live":
        """The same without what that row tells. Of two that were written at once either may be the older."""
        if row.at_s < self.at_s:
            return self
        under_way = tuple(it for it in self.under_way if not _is_told(it, row))
        open_ = {step: calls for step, calls in self.open.items() if step > row.step}
        return msgspec.structs.replace(self, under_way=under_way, open=open_)


def is_of_no_step(call: str) -> bool:
    """Whether it is a move, or comes before a script's loop: a row tells of it with the first step that closes then."""
    return "@" in call or call.endswith(BEFORE_LOOP)


def _is_told(unit: UnderWay, row: StepCost) -> bool:
    """Whether a row tells of this unit as executed, or its step was closed."""
    calls = row.calls if is_of_no_step(unit.call) else row.again.get(unit.step, {})
    cost = calls.get(unit.call)
    return unit.step == row.step or (cost is not None and any(span.part == unit.part for span in cost.spans))


class Made(NamedTuple):
    """A part of a call, or a move, that was executed, and its workers, where they are known."""

    step: int
    """In whose row it is; that of a move is the first that closed after it."""
    call: str
    span: Span
    ranks: tuple[int, ...]
    again: bool = False
    """Whether an older attempt has closed its step."""


def made_in(row: StepCost, ranks: Ranks) -> Iterator[Made]:
    """All that a row tells. `ranks` are as the rows up to this one have them."""
    yield from _made({row.step: row.calls}, ranks, again=False)
    yield from _made(row.again, ranks, again=True)


def made_since(live: Live, ranks: Ranks) -> Iterator[Made]:
    """What no row tells yet."""
    yield from _made(live.open, ranks, again=False)


def take_ranks(known: Ranks, more: Ranks) -> None:
    """Know what another row tells, too."""
    for call, parts in more.items():
        known.setdefault(call, {}).update(parts)


def _made(steps: Mapping[int, Mapping[str, CallCost]], ranks: Ranks, again: bool) -> Iterator[Made]:
    for step, calls in steps.items():
        for call, cost in calls.items():
            of_call = ranks.get(call, {})
            yield from (Made(step, call, span, of_call.get(span.part, ()), again) for span in cost.spans)


_ENCODER = msgspec.json.Encoder()
_ROWS = msgspec.json.Decoder(StepCost)
_LIVE = msgspec.json.Decoder(Live)


def encode(row: StepCost) -> bytes:
    """A line."""
    return _ENCODER.encode(row) + b"\n"


def decode(line: bytes | str) -> StepCost:
    """Raises `msgspec.DecodeError` on what is damaged."""
    return _ROWS.decode(line)


def encode_live(live: Live) -> bytes:
    """A file."""
    return _ENCODER.encode(live) + b"\n"


def decode_live(content: bytes) -> Live:
    """Raises `msgspec.DecodeError` on what is damaged."""
    return _LIVE.decode(content)

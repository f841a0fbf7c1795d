"""A script's talk with its run's master: numbers its asks, hears the answers, and knows what the script has read.

Knows neither groups nor batches; of a call it knows its name, its samples and who made what it reads.
"""

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hpcrl.controller.data_proto import Columns
from hpcrl.controller.line import Line
from hpcrl.controller.silence import Silence
from hpcrl.controller.user_code import misuse, place
from hpcrl.data.samples import SequenceSample
from hpcrl.durable.journal import Cuts
from hpcrl.errors import InternalError
from hpcrl.wire.holders import RowSource
from hpcrl.wire.script_messages import (
    CallAsked,
    CallExecuted,
    FromScript,
    NextTurn,
    NoMoreTurns,
    OnceAnswered,
    OnceAsked,
    OnceDone,
    RowsAsked,
    RowsAt,
    ScriptBegins,
    ScriptEnded,
    ToScript,
    TurnBegun,
    TurnEnded,
)

T = TypeVar("T")


@dataclass
class _Turn:
    """What has been asked in the turn that is open, and answered."""

    begun: TurnBegun
    asks: int = 0
    times: Counter[str] = field(default_factory=Counter)
    numbers: dict[str, int] = field(default_factory=dict)
    """Call, as asked for → its number."""
    executed: dict[int, dict[str, float]] = field(default_factory=dict)
    once: dict[int, str | None] = field(default_factory=dict)
    """What was done outside of the run, by ask → what came of it; None where it is to be done."""
    unsaid: set[int] = field(default_factory=set)
    """Asks whose rows or statistics the script has read since its last."""
    is_outside: bool = False
    """The script does something outside of the run."""


class Conversation:
    """Of one attempt. Used by the thread alone that made it."""

    def __init__(
        self,
        line: Line,
        executed: Callable[[int, str], None] = lambda step, call: None,
        silence: Silence | None = None,
    ) -> None:
        """`executed` is told of each call that is executed: its step and its name, as it was asked for. `silence`
        hears when the script asks and waits."""
        self._line = line
        self._silence = silence
        self._told = executed
        self._thread = threading.get_ident()
        self._turn: _Turn | None = None
        self._calls: dict[tuple[int, int], str] = {}
        """Those of any turn that are not known to be executed."""
        self._sources: dict[int, tuple[RowSource, ...]] = {}
        self._tokens = 0
        self._last_place = ""
        self.broken: BaseException | None = None
        """What has ended the line: a script that catches it gets no further."""

    @property
    def turn(self) -> TurnBegun | None:
        """The turn that is open."""
        return self._turn.begun if self._turn else None

    @property
    def settings(self) -> int | None:
        """The version of the run's settings under which the next ask is made; None before the first turn."""
        if self._turn is None:
            return None
        begun, asks = self._turn.begun, self._turn.asks
        return begun.recorded[asks] if asks < len(begun.recorded) else begun.settings

    @property
    def parts(self) -> int | None:
        """The parts in which an older attempt has made the next ask; None where none has."""
        assert self._turn is not None
        parts, asks = self._turn.begun.parts, self._turn.asks
        return parts[asks] if asks < len(parts) else None

    def begin(self) -> ScriptBegins:
        """Wait until the script is to begin."""
        begins = self._hear()
        if not isinstance(begins, ScriptBegins):
            raise _unexpected(begins, "before the script had begun")
        return begins

    def open_turn(self, step: int) -> TurnBegun | None:
        """The turn, if there is such a one; waits for it."""
        self._own_thread()
        assert self._turn is None
        self._ask(NextTurn(step))
        while not isinstance(answer := self._hear(), TurnBegun | NoMoreTurns):
            self._take(answer)
        if answer.step != step:
            raise _unexpected(answer, f"where turn {step} was asked for")
        self._turn = _Turn(answer) if isinstance(answer, TurnBegun) else None
        return self.turn

    def close_turn(self, state: str, logged: dict[str, float]) -> None:
        """The turn is over."""
        self._own_thread()
        turn, self._turn = self._turn, None
        assert turn is not None
        at = place() or self._last_place
        self._ask(TurnEnded(turn.begun.step, turn.asks + 1, state, logged, _read(turn), at))

    def end(self, step: int) -> None:
        """The script has returned."""
        self._ask(ScriptEnded(step))

    def current(self, step: int, doing: str) -> None:
        """Raises UserCodeError where this is not the open turn, or not the script's thread."""
        self._own_thread()
        if self._turn is None:
            raise misuse(
                f"{doing}: no turn is open.",
                "Calls belong into the loop: for step in run.steps(): batch = step.batch().",
            )
        if self._turn.begun.step != step:
            raise misuse(
                f"{doing}: it is of step {step}, and step {self._turn.begun.step} has begun.",
                "Rows and futures live in the turn that made them; keep numbers in run.state.",
            )
        if self._turn.is_outside:
            raise misuse(
                f"{doing}: run.once is not over.",
                "Ask before it, and give its function what it needs as arguments.",
            )

    def next_name(self, call: str) -> str:
        """What the call is called where it is asked for next."""
        assert self._turn is not None
        times = self._turn.times[call] + 1
        return call if times == 1 else f"{call}_{times}"

    def ask(self, call: str, ids: tuple[str, ...], inputs: Columns, arguments: str = "", cut: Cuts = ()) -> int:
        """Ask for a call in the open turn, cut as the master does or in these parts; its number."""
        turn = self._turn
        assert turn is not None
        name = self.next_name(call)
        self._last_place = place()
        turn.times[call] += 1
        turn.asks += 1
        turn.numbers[name] = turn.asks
        self._calls[turn.begun.step, turn.asks] = name
        at = self._last_place
        self._ask(CallAsked(turn.begun.step, turn.asks, name, ids, dict(inputs), arguments, _read(turn), at, cut))
        turn.unsaid.clear()
        return turn.asks

    def once(self, name: str, arguments: str, do: Callable[[str], str]) -> str:
        """What `do` gives, told how its ask is called, unless it is recorded: then it is not done. JSON."""
        turn = self._turn
        assert turn is not None
        own, at = f"run.once({name})", place()
        turn.times[own] += 1
        call = name if turn.times[own] == 1 else f"{name}_{turn.times[own]}"
        turn.asks += 1
        step, number = turn.begun.step, turn.asks
        self._ask(OnceAsked(step, number, call, arguments, _read(turn), at))
        turn.unsaid.clear()
        self._until(lambda: True if number in turn.once else None)
        if (found := turn.once.pop(number)) is not None:
            return found
        turn.is_outside = True
        result = self._guarded(lambda: do(call))
        turn.is_outside = False
        self._ask(OnceDone(step, number, result))
        return self._until(lambda: turn.once.get(number))

    def wait(self, step: int, number: int, doing: str) -> None:
        """Until a call of the open turn is executed."""
        self.current(step, doing)
        self._stats(number)

    def stats(self, step: int, number: int, doing: str) -> dict[str, float]:
        """The statistics of a call of the open turn, which are read by this; waits for them."""
        self.current(step, doing)
        found = self._stats(number)
        assert self._turn is not None
        self._turn.unsaid.add(number)
        return found

    def read(self, step: int, ids: tuple[str, ...], columns: Columns) -> SequenceSample:
        """Rows, which are read by this; waits for those who make them."""
        self.current(step, "reading rows")
        turn = self._turn
        assert turn is not None
        makers = {run.call for runs in columns.values() for run in runs if run.call}
        for number in sorted(turn.numbers[maker] for maker in makers):
            self._stats(number)
        self._tokens += 1
        token = self._tokens
        self._ask(RowsAsked(step, token, ids, dict(columns)))
        sources = self._until(lambda: self._sources.pop(token, None))
        with self._resting():
            found = self._guarded(lambda: self._line.rows(ids, sources))
        turn.unsaid |= {turn.numbers[maker] for maker in makers}
        return found

    def _stats(self, number: int) -> dict[str, float]:
        turn = self._turn
        assert turn is not None
        return self._until(lambda: turn.executed.get(number))

    def _until(self, found: Callable[[], T | None]) -> T:
        while (it := found()) is None:
            self._take(self._hear())
        return it

    def _take(self, message: ToScript) -> None:
        """Answers come in any order, those to a turn that is over too."""
        match message:
            case RowsAt(token, sources):
                self._sources[token] = sources
            case CallExecuted(step, number, stats) if (name := self._calls.pop((step, number), None)) is not None:
                self._told(step, name)
                if self._turn is not None and self._turn.begun.step == step:
                    self._turn.executed[number] = stats
            case OnceAnswered(step, number, result) if self._turn is not None and self._turn.begun.step == step:
                self._turn.once[number] = result
            case _:
                raise _unexpected(message, "which nothing had asked for")

    def _own_thread(self) -> None:
        if threading.get_ident() != self._thread:
            # Nobody may ever look at an error that is raised here alone.
            self.broken = misuse(
                "another thread than the script's own asks for something.",
                "Ask from the script's thread: blocking=False gives a future at once.",
            )
            raise self.broken

    def _hear(self) -> ToScript:
        with self._resting():
            return self._guarded(self._line.hear)

    def _ask(self, message: FromScript) -> None:
        with self._resting():
            self._guarded(lambda: self._line.ask(message))

    def _resting(self) -> AbstractContextManager[None]:
        step = self._turn.begun.step if self._turn is not None else 0
        return nullcontext() if self._silence is None else self._silence.resting(step)

    def _guarded(self, act: Callable[[], T]) -> T:
        """What has once broken the line is raised again by all that follows."""
        if self.broken is not None:
            raise self.broken
        try:
            return act()
        except BaseException as error:
            self.broken = error
            raise


def _read(turn: _Turn) -> tuple[int, ...]:
    return tuple(sorted(turn.unsaid))


def _unexpected(message: Any, when: str) -> InternalError:
    return InternalError(f"the master sent {message!r} {when}")

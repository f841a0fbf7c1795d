"""A script's talk with its run's master: numbers its asks, hears the answers, and knows what the script has read.

Knows neither groups nor batches; of a call it knows its name, its samples and who made what it reads.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

from hpcrl.controller.asked_turn import AskedTurn, outside_a_turn
from hpcrl.controller.data_proto import Columns
from hpcrl.controller.line import Line
from hpcrl.controller.silence import Silence
from hpcrl.controller.user_code import misuse, place, this_thread
from hpcrl.data.samples import SequenceSample
from hpcrl.data.totals import mean_of
from hpcrl.durable.journal import Cuts
from hpcrl.errors import InternalError
from hpcrl.wire.holders import RowSource, by_copies
from hpcrl.wire.script_messages import (
    CallAsked,
    CallExecuted,
    FromScript,
    LoopAt,
    LoopGoesOn,
    NextTurn,
    NoMoreTurns,
    OnceAnswered,
    OnceAsked,
    OnceDone,
    Prepared,
    ReadsAhead,
    RowsAsked,
    RowsAt,
    ScriptBegins,
    ScriptEnded,
    ToScript,
    TurnBegun,
    TurnEnded,
)

T = TypeVar("T")


class Conversation:
    """Of one attempt. Used by the thread that made it, and by those that have joined; each has a turn of its own."""

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
        self._threads = [this_thread()]
        """Those that may ask, the script's own first."""
        self._open: dict[int, AskedTurn] = {}
        """Each thread's."""
        self._turns: dict[int, AskedTurn] = {}
        """By step, those that are prepared too."""
        self._begun: dict[int, TurnBegun | NoMoreTurns] = {}
        self._let_go_on: dict[int, bool] = {}
        self._heard = threading.Condition()
        self._hears = False
        """Whether a thread waits for the line; others wait for it."""
        self._calls: dict[tuple[int, int], str] = {}
        """Those of any turn that are not known to be executed."""
        self._sources: dict[int, tuple[RowSource, ...]] = {}
        self._tokens = 0
        self.broken: BaseException | None = None
        """What has ended the line: a script that catches it gets no further."""

    @property
    def is_own_thread(self) -> bool:
        """Whether this thread is the script's, or one that has joined."""
        return this_thread() in self._threads

    @property
    def _turn(self) -> AskedTurn | None:
        return self._open.get(threading.get_ident())

    @_turn.setter
    def _turn(self, turn: AskedTurn | None) -> None:
        self._open.pop(threading.get_ident(), None)
        if turn is not None:
            self._open[threading.get_ident()] = turn

    @property
    def turn(self) -> TurnBegun | None:
        """The turn that is open in this thread."""
        return self._turn.begun if self._turn and not self._turn.is_before else None

    @property
    def step(self) -> int | None:
        """The step that what this thread asks for is told as of; before the loop that before the first turn."""
        return self._turn.begun.step if self._turn else None

    @property
    def settings(self) -> int | None:
        """The version of the run's settings under which the next ask is made; None before the first turn."""
        if self._turn is None or self._turn.is_before:
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
        """Wait until the script is to begin: what it asks for now comes before its loop."""
        with self.resting():
            begins = self._guarded(self._line.hear)
        if not isinstance(begins, ScriptBegins):
            raise _unexpected(begins, "before the script had begun")
        before = TurnBegun(begins.step - 1, (), (), 0, 0)
        self._turn = self._turns[before.step] = AskedTurn(before, is_before=True)
        return begins

    def begin_loop(self) -> None:
        """Nothing more is asked for that comes before it."""
        if self._turn is not None and self._turn.is_before:
            del self._turns[self._turn.begun.step]
            self._turn = None

    def join(self) -> None:
        """This thread of the script's asks too, in turns of its own."""
        self._threads.append(this_thread())

    def leave(self) -> None:
        """This thread asks no more."""
        self._threads.remove(this_thread())
        if self._silence is not None:
            self._silence.rests()

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Within, the turn that is open is prepared."""
        turn = self._turn
        assert turn is not None
        turn.reads = []
        yield
        turn.reads = None

    def open_turn(self, step: int, lag: int = 0) -> TurnBegun | None:
        """The turn, if there is such a one; waits for it. With a `lag`, it is prepared ahead."""
        self._own_thread()
        assert self._turn is None
        self._ask(NextTurn(step, lag))

        def begun() -> TurnBegun | NoMoreTurns | None:
            return self._begun.pop(step, None)

        answer = self._until(begun)
        if not isinstance(answer, TurnBegun):
            return None
        self._turn = self._turns[step] = AskedTurn(answer, reads=[] if lag else None, is_ahead=lag > 0)
        return answer

    def prepared(self) -> None:
        """All is asked for that is asked ahead in this thread's turn; `go_on` is for what follows."""
        turn, self._turn = self._turn, None
        assert turn is not None
        turn.reads = None
        self._ask(Prepared(turn.begun.step))

    def go_on(self, step: int) -> TurnBegun:
        """A turn that is prepared is this thread's; waits until it may go on."""
        self._own_thread()
        assert self._turn is None
        self._ask(LoopAt(step))
        self._until(lambda: self._let_go_on.pop(step, None))
        self._turn = self._turns[step]
        return self._turn.begun

    def close_turn(self, state: str, logged: dict[str, float], left: bool) -> None:
        """The turn is over, and with it the loop where it is left."""
        self._own_thread()
        turn, self._turn = self._turn, None
        assert turn is not None
        del self._turns[turn.begun.step]
        at = place() or turn.last_place
        self._ask(TurnEnded(turn.begun.step, turn.asks + 1, state, logged, turn.say_read(), at, left))

    def end(self, step: int) -> None:
        """The script has returned."""
        self._ask(ScriptEnded(step))

    def current(self, step: int, doing: str) -> None:
        """Raises UserCodeError where this is not the open turn, or not the script's thread."""
        self._own_thread(doing)
        if self._turn is None:
            raise outside_a_turn(f"{doing}: no turn is open.")
        self._turn.refuse_other(step, doing)

    def refuse_before(self, doing: str) -> None:
        """Raises UserCodeError before the loop."""
        if self._turn is not None:
            self._turn.refuse_before(doing)

    def takes(self, role: str) -> None:
        """This thread takes the group of a role."""
        if self._turn is not None:
            self._turn.takes(role)

    def refuse_ahead(self, role: str, changes: bool, doing: str) -> None:
        """Raises UserCodeError where this thread prepares a step, and must not do that."""
        if self._turn is not None:
            self._turn.refuse_ahead(role, changes, doing)

    def next_name(self, call: str) -> str:
        """What the call is called where it is asked for next."""
        assert self._turn is not None
        return self._turn.name_of(call, self._turn.times[call] + 1)

    def are_newer(self, makers: Iterable[str], call: str) -> bool:
        """Whether all of these were asked for in the open turn after this call was asked for last."""
        assert self._turn is not None
        return self._turn.are_newer(makers, call)

    def ask(self, call: str, ids: tuple[str, ...], inputs: Columns, arguments: str = "", cut: Cuts = ()) -> int:
        """Ask for a call in the open turn, cut as the master does or in these parts; its number."""
        turn = self._turn
        assert turn is not None
        name = self.next_name(call)
        if turn.reads is not None and turn.is_ahead and not turn.asks:
            self._ask(ReadsAhead(turn.begun.step, tuple(turn.reads)))
        turn.last_place = place()
        turn.times[call] += 1
        turn.asks += 1
        turn.numbers[name] = turn.asks
        self._calls[turn.begun.step, turn.asks] = name
        at = turn.last_place
        self._ask(CallAsked(turn.begun.step, turn.asks, name, ids, dict(inputs), arguments, turn.say_read(), at, cut))
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
        self._ask(OnceAsked(step, number, call, arguments, turn.say_read(), at))
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
        self._executed(number)

    def stats(self, step: int, number: int, doing: str) -> dict[str, float]:
        """The statistics of a call of the open turn, which are read by this; waits for them."""
        self.current(step, doing)
        return self._answer_read(number).stats

    def values(self, number: int) -> tuple[str, ...]:
        """What a method of JSON that is executed has returned, which is read by this."""
        return self._answer_read(number).values

    def read(self, step: int, ids: tuple[str, ...], columns: Columns) -> SequenceSample:
        """Rows, which are read by this; waits for those who make them."""
        sources = self._sources_of(step, ids, columns)
        with self.resting():
            return self._guarded(lambda: self._line.rows(ids, sources))

    def mean(self, step: int, ids: tuple[str, ...], columns: Columns) -> float:
        """The mean of rows, which are read by this, where they are; waits for those who make them."""
        counted = [each for source in self._sources_of(step, ids, columns) for each in by_copies(source)]
        with self.resting():
            totals = self._guarded(lambda: self._line.totals([source for source, _ in counted]))
        return mean_of((total, times) for total, (_, times) in zip(totals, counted, strict=True))

    def _sources_of(self, step: int, ids: tuple[str, ...], columns: Columns) -> tuple[RowSource, ...]:
        """Where rows are that are read by this; waits for those who make them."""
        self.current(step, "reading rows")
        turn = self._turn
        assert turn is not None
        makers = {run.call for runs in columns.values() for run in runs if run.call}
        for number in sorted(turn.numbers[maker] for maker in makers):
            self._executed(number)
        with self._heard:
            self._tokens += 1
            token = self._tokens
        self._ask(RowsAsked(step, token, ids, dict(columns)))
        turn.unsaid |= {turn.numbers[maker] for maker in makers}
        return self._until(lambda: self._sources.pop(token, None))

    def _answer_read(self, number: int) -> CallExecuted:
        found = self._executed(number)
        assert self._turn is not None
        self._turn.unsaid.add(number)
        return found

    def _executed(self, number: int) -> CallExecuted:
        turn = self._turn
        assert turn is not None
        return self._until(lambda: turn.executed.get(number))

    def _until(self, found: Callable[[], T | None]) -> T:
        with self.resting(), self._heard:
            while (it := found()) is None:
                if self.broken is not None:
                    raise self.broken
                if self._hears:
                    self._heard.wait()
                else:
                    self._take(self._next_answer())
            return it

    def _next_answer(self) -> ToScript:
        """Heard by one thread at a time, while others may ask."""
        self._hears = True
        self._heard.release()
        try:
            return self._guarded(self._line.hear)
        finally:
            self._heard.acquire()
            self._hears = False
            self._heard.notify_all()

    def _take(self, message: ToScript) -> None:
        """Answers come in any order, those to a turn that is over too."""
        match message:
            case RowsAt(token, sources):
                self._sources[token] = sources
            case CallExecuted(step, number) if (name := self._calls.pop((step, number), None)) is not None:
                self._told(step, name)
                if step in self._turns:
                    self._turns[step].executed[number] = message
            case OnceAnswered(step, number, result) if step in self._turns:
                self._turns[step].once[number] = result
            case TurnBegun() | NoMoreTurns():
                self._begun[message.step] = message
            case LoopGoesOn(step) if step in self._turns:
                self._let_go_on[step] = True
            case _:
                self.broken = _unexpected(message, "which nothing had asked for")
                raise self.broken

    def fail(self, error: BaseException) -> None:
        """The line is no longer to be used, by any thread."""
        with self._heard:
            self.broken = self.broken or error
            self._heard.notify_all()

    def _own_thread(self, doing: str = "run.steps()") -> None:
        if not self.is_own_thread:
            process, thread = self._threads[0]
            other = "thread" if os.getpid() == process else "process"
            # Nobody may ever look at an error that is raised here alone.
            self.broken = misuse(
                f"{doing}: another {other} than the script's own asks for it.",
                "Ask from the script's thread: calls whose rows it does not read overlap.",
                place(sys._current_frames().get(thread)),
            )
            raise self.broken

    def _ask(self, message: FromScript) -> None:
        with self.resting(), self._heard:
            self._guarded(lambda: self._line.ask(message))

    def resting(self) -> AbstractContextManager[None]:
        """Within, this thread of the script's waits."""
        step = self.turn.step if self.turn is not None else 0
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


def _unexpected(message: Any, when: str) -> InternalError:
    return InternalError(f"the master sent {message!r} {when}")

"""A line to nobody: answers a script by made-up rows and numbers.

Only computations are really made: they are the script's own.
"""

from collections import deque
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from hpcrl.controller.computations import Computations
from hpcrl.controller.computed_rows import Computed, RowsComputed, digests_of
from hpcrl.controller.made_up import MadeUpRows
from hpcrl.controller.user_code import generators, misuse
from hpcrl.data.order import sample_ids
from hpcrl.data.samples import SequenceSample
from hpcrl.data.totals import Total, total_of
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import InternalError, UserCodeError
from hpcrl.recipes.algorithm import SCRIPT, Algorithm
from hpcrl.wire.holders import FROM_DATA, RowSource
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
    RowsAsked,
    RowsAt,
    ScriptBegins,
    ToScript,
    TurnBegun,
)

EVALUATED = 8
MOST_CALLS = 2_000
"""That a turn may ask for."""
MOST_OF_COUNTED = 64
"""Samples of a step whose tokens are counted, not its rows."""


class StandIn:
    """Fulfils `Line` for the turns from `first` to `last`; what it was asked is in `asked`."""

    def __init__(
        self,
        algorithm: Algorithm[Any],
        experiment: Any,
        computations: Computations,
        first: int,
        last: int,
        states: Sequence[str],
        recorded: Computed = MappingProxyType({}),
    ) -> None:
        """What is `recorded` is not computed again. `states` are those after the steps before `first`, if there are
        any."""
        self.asked: list[FromScript | RowsComputed] = []
        self.computed: dict[tuple[int, str], SequenceSample] = {}
        self._recorded = recorded
        self._algorithm = algorithm
        self._experiment = experiment
        self._computations = computations
        self._made_up = MadeUpRows(algorithm, experiment)
        self._last = last
        begins = ScriptBegins(first, states[-1], tuple(states[:-1])) if states else ScriptBegins(first)
        self._answers: deque[ToScript] = deque([begins])
        self._rows_asked: RowsAsked | None = None

    def ask(self, message: FromScript) -> None:
        if self._computations.running:
            raise misuse(
                f"{self._computations.running} is a computation, and asks for something itself.",
                "Ask in the loop, and have the computation read what comes of it as rows.",
            )
        self.asked.append(message)
        match message:
            case NextTurn(step):
                self._answers.append(self._begun(step) if step <= self._last else NoMoreTurns(step))
            case LoopAt(step):
                self._answers.append(LoopGoesOn(step))
            case CallAsked():
                self._refuse_endless(message)
                self._execute(message)
                stats, values = self._made_up.statistics(message), self._made_up.values(message)
                self._answers.append(CallExecuted(message.step, message.number, stats, values))
            case OnceAsked(step, number):
                self._answers.append(OnceAnswered(step, number))
            case OnceDone(step, number, result):
                self._answers.append(OnceAnswered(step, number, result))
            case RowsAsked(step, token, ids, inputs):
                self._rows_asked = message
                self._answers.append(RowsAt(token, (RowSource(step, FROM_DATA, tuple(inputs), ids, ()),)))

    def hear(self) -> ToScript:
        if not self._answers:
            raise InternalError("the script waits for an answer that nobody owes it")
        return self._answers.popleft()

    def rows(self, ids: Sequence[str], sources: Sequence[RowSource]) -> SequenceSample:
        assert self._rows_asked is not None
        return self._made_up.rows(self._rows_asked.step, ids, self._rows_asked.inputs)

    def totals(self, sources: Sequence[RowSource]) -> list[Total]:
        return [total_of(self.rows(source.ids, sources)) for source in sources]

    def _begun(self, step: int) -> TurnBegun:
        """One turn of two evaluates, the first too, if the run does at all."""
        batch = self._algorithm.batch(self._experiment)
        count = batch.rows if batch.tokens is None else min(batch.rows, MOST_OF_COUNTED)
        ids = sample_ids([f"made-up-{step}-{row}" for row in range(count)], 0, batch.per_row)
        held_out = [f"made-up-eval-{row}" for row in range(EVALUATED)]
        evaluates = step % 2 == 1 and self._algorithm.evaluates(self._experiment)
        turn = TurnBegun(step, ids, sample_ids(held_out, 0) if evaluates else (), 0, 0)
        self._made_up.begin(turn)
        return turn

    def _refuse_endless(self, asked: CallAsked) -> None:
        if asked.number > MOST_CALLS:
            raise UserCodeError(
                f"{asked.at}: step {asked.step} has asked for {MOST_CALLS} calls, and asks for more.",
                "If a loop waits for numbers that made-up rows do not have, bound it: for _ in range(10).",
            )

    def _execute(self, asked: CallAsked) -> None:
        self._made_up.ask(asked)
        call = self._made_up.call(asked.call)
        if call.role != SCRIPT:
            return
        made = self._recorded.get((asked.step, asked.call))
        if made is None or made.ids != asked.ids:
            made = self._compute(asked, call)
        self.computed[asked.step, asked.call] = made
        self.asked.append(RowsComputed(asked.step, asked.call, digests_of(made), asked.at))
        self._made_up.keep(asked, made)

    def _compute(self, asked: CallAsked, call: MFC) -> SequenceSample:
        rows = self._made_up.rows(asked.step, asked.ids, asked.inputs).remap(call.input_remap)
        by_key = {key: rows.rows(key) for key in rows.keys}
        before = generators()
        made = self._computations.run(asked.step, asked.call, asked.ids, by_key).remap(call.output_remap)
        if generators() != before:
            raise UserCodeError(
                f"{asked.at}: {asked.call} draws from the generators of random or numpy.random, which are the "
                "script's: a computation that is recorded is not made again, and leaves them where they are.",
                "Give it a seed as an argument: int(run.rng('NAME').integers(2**32)).",
            )
        return made

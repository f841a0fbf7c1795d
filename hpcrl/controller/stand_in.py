"""A line to nobody: answers a script by made-up rows and numbers, which follow from the run's seed and their names.

Only computations are really made: they are the script's own.
"""

import json
from collections import deque
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from hpcrl.config.classifier import ClassifierConfig
from hpcrl.config.fields import sections_of
from hpcrl.config.judge import JudgeConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.controller.computations import Computations
from hpcrl.controller.computed_rows import Computed
from hpcrl.controller.data_proto import Columns
from hpcrl.controller.declared import registered_of
from hpcrl.controller.user_code import generators, misuse
from hpcrl.data.order import original, sample_ids
from hpcrl.data.samples import SequenceSample, sample_seed
from hpcrl.data.totals import Total, total_of
from hpcrl.dataflow.graph import MFC, recipe_name
from hpcrl.durable.made import Made, origins
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

LENGTH = 4
"""Of a row that has something for each token."""
TOKENS = 8
"""Made-up tokens are below this: every vocabulary has so many."""
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
        state: str,
        recorded: Computed = MappingProxyType({}),
    ) -> None:
        """What is `recorded` is not computed again."""
        self.asked: list[FromScript] = []
        self.computed: dict[tuple[int, str], SequenceSample] = {}
        self._recorded = recorded
        self._algorithm = algorithm
        self._experiment = experiment
        self._computations = computations
        self._calls = {call.name: call for call in algorithm.executed(experiment)}
        self._reported = algorithm.reported(experiment)
        self._forms = algorithm.forms(experiment)
        self._last = last
        self._answers: deque[ToScript] = deque([ScriptBegins(first, state or None)])
        self._rows_asked: RowsAsked | None = None
        self._turns: dict[int, TurnBegun] = {}
        self._made: dict[tuple[int, str, str], list[np.ndarray]] = {}
        """(step, call as asked for, key) → rows, along the ids of the turn; a computation's along its own."""
        self._computed: dict[tuple[int, str, str], dict[str, np.ndarray]] = {}

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
                stats = {
                    name: self._number(message, name) for name in self._reported.get(self._call(message.call).name, ())
                }
                self._answers.append(CallExecuted(message.step, message.number, stats, self._returned(message)))
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
        return self._rows(self._rows_asked.step, tuple(ids), self._rows_asked.inputs)

    def totals(self, sources: Sequence[RowSource]) -> list[Total]:
        return [total_of(self.rows(source.ids, sources)) for source in sources]

    def _begun(self, step: int) -> TurnBegun:
        """One turn of two evaluates, if the run does at all."""
        batch = self._algorithm.batch(self._experiment)
        count = batch.rows if batch.tokens is None else min(batch.rows, MOST_OF_COUNTED)
        ids = sample_ids([f"made-up-{step}-{row}" for row in range(count)], 0, batch.per_row)
        held_out = [f"made-up-eval-{row}" for row in range(EVALUATED)]
        evaluates = step % 2 == 0 and self._algorithm.evaluates(self._experiment)
        self._turns[step] = TurnBegun(step, ids, sample_ids(held_out, 0) if evaluates else (), 0, 0)
        return self._turns[step]

    def _refuse_endless(self, asked: CallAsked) -> None:
        if asked.number > MOST_CALLS:
            raise UserCodeError(
                f"{asked.at}: step {asked.step} has asked for {MOST_CALLS} calls, and asks for more.",
                "If a loop waits for numbers that made-up rows do not have, bound it: for _ in range(10).",
            )

    def _execute(self, asked: CallAsked) -> None:
        call = self._call(asked.call)
        if call.role != SCRIPT:
            return
        made = self._recorded.get((asked.step, asked.call))
        if made is None or made.ids != asked.ids:
            made = self._compute(asked, call)
        self.computed[asked.step, asked.call] = made
        for key in made.keys:
            self._computed[asked.step, asked.call, key] = dict(zip(made.ids, made.rows(key), strict=True))

    def _returned(self, asked: CallAsked) -> tuple[str, ...]:
        """What a method of JSON gives in a rehearsal."""
        call = self._call(asked.call)
        if not call.dispatch.values:
            return ()
        return (json.dumps(registered_of(self._algorithm, [call])[call.name].rehearsed),) * len(asked.ids)

    def _compute(self, asked: CallAsked, call: MFC) -> SequenceSample:
        rows = self._rows(asked.step, asked.ids, asked.inputs).remap(call.input_remap)
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

    def _rows(self, step: int, ids: tuple[str, ...], inputs: Columns) -> SequenceSample:
        return SequenceSample.from_rows(ids, {key: self._of_key(step, ids, key, runs) for key, runs in inputs.items()})

    def _of_key(self, step: int, ids: tuple[str, ...], key: str, runs: Sequence[Made]) -> list[np.ndarray]:
        turn = self._turns.get(step)  # none of what comes before the loop
        places = {} if turn is None else {name: i for i, name in enumerate((*turn.ids, *turn.eval_ids))}
        found = []
        for name, of in zip(ids, origins(runs), strict=True):
            maker, own_key, sample = of.call, of.key or key, original(name, of.repeats)
            if (own := self._computed.get((step, maker, own_key))) is not None:
                found.append(own[sample])
            elif sample in places:
                found.append(self._drawn(step, maker, own_key, len(places))[places[sample]])
            else:
                found.append(self._draw_of(step, maker, own_key, sample, 1)[0])
        return found

    def _drawn(self, step: int, maker: str, key: str, count: int) -> list[np.ndarray]:
        """A row for each sample of the turn."""
        if (step, maker, key) not in self._made:
            self._made[step, maker, key] = [*self._draw_of(step, maker, key, "", count)]
        return self._made[step, maker, key]

    def _draw_of(self, step: int, maker: str, key: str, sample: str, count: int) -> np.ndarray:
        seed = sample_seed(self._experiment.seed, step, f"{maker} {key}", sample)
        return self._draw(np.random.default_rng(seed), maker, key, count)

    def _draw(self, generator: np.random.Generator, maker: str, key: str, count: int) -> np.ndarray:
        form = self._forms[key]
        kind = np.dtype(form.dtype)
        shape = (count, self._length(maker, key, kind), *form.trailing)
        if kind == np.uint8:
            return np.tile(np.frombuffer(b"[]" if key.endswith("turns") else b"{}", np.uint8), (count, 1))
        if kind.kind == "b":
            return generator.random(shape) < 0.5
        if kind.kind in "iu":
            return generator.integers(0, TOKENS, shape).astype(kind)
        return generator.random(shape).astype(kind)

    def _length(self, maker: str, key: str, kind: np.dtype[Any]) -> int:
        """Scores and flags are one of each sample; all else has something for each token."""
        scorers = [sections_of(self._experiment, of) for of in (RewardConfig, ClassifierConfig, JudgeConfig)]
        is_score = maker != FROM_DATA and any(self._call(maker).role in sections for sections in scorers)
        is_flag = kind.kind == "b" and not key.endswith("response_mask")
        is_score = is_score or key.endswith("environment_scores")
        return 1 if is_flag or (is_score and not key.endswith("token_rewards")) else LENGTH

    def _number(self, asked: CallAsked, name: str) -> float:
        seed = sample_seed(self._experiment.seed, asked.step, f"{asked.call} {name}", "")
        return float(np.random.default_rng(seed).random())

    def _call(self, name: str) -> MFC:
        return self._calls[recipe_name(name, self._calls)]

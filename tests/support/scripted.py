"""A script of the toy algorithm beside a master that is a list: it answers each ask, late and in any order."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.controller.computations import Computations
from hpcrl.controller.run import World, follow
from hpcrl.data.order import original
from hpcrl.data.rows.vectors import VECTORS
from hpcrl.data.samples import SequenceSample
from hpcrl.data.totals import Total, total_of
from hpcrl.durable.made import origins
from hpcrl.placement.plan import plan_for
from hpcrl.recipes import toy
from hpcrl.recipes.algorithm import SCRIPT, Algorithm, RoleKind, computed, on_eval
from hpcrl.wire.holders import RowSource
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
    ScriptEnded,
    ToScript,
    TurnBegun,
    TurnEnded,
)

CALLS = (*toy.CALLS, computed("scale", ("r",), ("s",)), on_eval(computed("eval_scale", ("r",), ("s",))))
EVALUATING = toy.ToyExperiment(control=ControlConfig(steps=3, evaluate=Frequency(steps=2)))


def algorithm_with(script: Callable[..., Any]) -> Algorithm[Any]:
    return replace(
        toy.ALGORITHM,
        script=script,
        recipe=lambda experiment: CALLS,
        roles={**toy.ALGORITHM.roles, SCRIPT: RoleKind("nobody:makes")},
        made={**toy.ALGORITHM.made, "s": VECTORS},
    )


def row(call: str, key: str, sample: str) -> np.ndarray:
    """What the call, or the data, has made of a sample."""
    return np.random.default_rng([*f"{call} {key} {sample}".encode()]).random(3)


@dataclass
class FakeMaster:
    """Fulfils `Line`. Everything that was said is in `asked`; `late` shuffles the answers to calls."""

    computations: Computations
    turns: int = 3
    first: int = 1
    state: str | None = None
    earlier: tuple[str, ...] = ()
    recorded: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    parts: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    settings: int = 0
    late: random.Random | None = None
    stats: Callable[[CallAsked], dict[str, float]] = lambda asked: {"loss": float(asked.step), "norm": 2.0}
    fails: Callable[[FromScript], BaseException | None] = lambda message: None
    done: Mapping[tuple[int, int], str] = field(default_factory=dict)
    asked: list[FromScript] = field(default_factory=list)
    answers: list[ToScript] = field(default_factory=list)
    rows_asked: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.answers.append(ScriptBegins(self.first, self.state, self.earlier))
        self._where: dict[int, RowsAsked] = {}
        self._calls: dict[tuple[int, str], dict[str, np.ndarray]] = {}

    def ask(self, message: FromScript) -> None:
        self.asked.append(msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=FromScript))
        if (error := self.fails(message)) is not None:
            raise error
        match message:
            case NextTurn(step) if step <= self.turns:
                held_out = ("e0@0", "e1@0") if step % 2 == 0 else ()
                ids = tuple(f"r{i}@{step}" for i in range(4))
                recorded = tuple(self.recorded.get(step, ()))
                self.answers.append(
                    TurnBegun(step, ids, held_out, step - 1, self.settings, recorded, tuple(self.parts.get(step, ())))
                )
            case NextTurn(step):
                self.answers.append(NoMoreTurns(step))
            case LoopAt(step):
                self.answers.append(LoopGoesOn(step))
            case CallAsked():
                self._execute(message)
                self._answer(CallExecuted(message.step, message.number, self.stats(message), self.values(message)))
            case OnceAsked(step, number):
                self._answer(OnceAnswered(step, number, self.done.get((step, number))))
            case OnceDone(step, number, result):
                self._answer(OnceAnswered(step, number, result))
            case RowsAsked():
                self._where[message.token] = message
                source = RowSource(message.step, "", (), message.ids, ())
                self._answer(RowsAt(message.token, (source,)))

    def values(self, asked: CallAsked) -> tuple[str, ...]:
        """What a method of JSON returns."""
        return ("null",) * len(asked.ids) if asked.cut else ()

    def _execute(self, asked: CallAsked) -> None:
        if asked.call.removeprefix("eval_").startswith("scale"):
            prefix = "eval_" if asked.call.startswith("eval_") else ""
            rows = {"r": self._rows(asked.step, asked.ids, f"{prefix}r", asked.inputs[f"{prefix}r"])}
            made = self.computations.run(asked.step, asked.call, asked.ids, rows)
            self._calls[asked.step, asked.call] = dict(zip(asked.ids, made.rows("s"), strict=True))

    def _answer(self, answer: ToScript) -> None:
        if self.late is None:
            self.answers.append(answer)
        else:
            self.answers.insert(self.late.randrange(len(self.answers) + 1), answer)

    def hear(self) -> ToScript:
        assert self.answers, "the script waits for what nobody will say"
        return self.answers.pop(0)

    def rows(self, ids: Sequence[str], sources: Sequence[RowSource]) -> SequenceSample:
        asked = next(it for it in self._where.values() if it.ids == tuple(ids))
        del self._where[asked.token]
        return SequenceSample.from_rows(
            ids, {key: self._rows(asked.step, ids, key, of) for key, of in asked.inputs.items()}
        )

    def totals(self, sources: Sequence[RowSource]) -> list[Total]:
        return [total_of(self.rows(source.ids, sources)) for source in sources]

    def _rows(self, step: int, ids: Sequence[str], key: str, made: Sequence[Any]) -> list[np.ndarray]:
        found = []
        for name, of in zip(ids, origins(made), strict=True):
            sample, computed_ = original(name, of.repeats), self._calls.get((step, of.call))
            found.append(row(of.call, of.key or key, sample) if computed_ is None else computed_[sample])
        return found

    @property
    def calls(self) -> list[CallAsked]:
        return [it for it in self.asked if isinstance(it, CallAsked)]

    @property
    def ends(self) -> list[TurnEnded]:
        return [it for it in self.asked if isinstance(it, TurnEnded)]

    @property
    def ended(self) -> bool:
        return isinstance(self.asked[-1], ScriptEnded)


def course(script: Callable[..., Any], experiments: Mapping[int, Any] | None = None, **how: Any) -> FakeMaster:
    """Follow a script to its end, or its error."""
    world, master = world_with(script, experiments, **how)
    follow(script, master, world)
    return master


def world_with(
    script: Callable[..., Any], experiments: Mapping[int, Any] | None, **how: Any
) -> tuple[World, FakeMaster]:
    algorithm = algorithm_with(script)
    plan = msgspec.structs.replace(plan_for(EVALUATING), calls=CALLS)
    computations = Computations(algorithm.forms(EVALUATING), longest_wait_s=0.2)
    world = World(algorithm, plan, experiments or {0: EVALUATING}, computations)
    return world, FakeMaster(computations, **how)

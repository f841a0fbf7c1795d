"""What a script asks for before its loop: of which kinds, told how, and what is refused there and after it."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import before_script, scripted

from hpcrl.config.control import ControlConfig
from hpcrl.controller import rehearsal
from hpcrl.controller.computations import Computations
from hpcrl.controller.run import World, follow
from hpcrl.errors import ConfigurationError, UserCodeError
from hpcrl.placement.plan import plan_for
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.wire.script_messages import CallAsked, NextTurn, ScriptEnded, TurnEnded

ALGORITHM = f"{Path(before_script.__file__)}:ALGORITHM"


@dataclass
class Telling(scripted.FakeMaster):
    """Each value is what was asked for it, by whom."""

    def values(self, asked: CallAsked) -> tuple[str, ...]:
        return tuple(json.dumps([asked.call, int(it)]) for it in asked.ids if asked.cut)


def course(script: Any, **how: Any) -> Telling:
    algorithm = algorithm_of(ALGORITHM)
    experiment = algorithm.experiment(algorithm=ALGORITHM, control=ControlConfig(steps=2))
    computations = Computations(algorithm.forms(experiment), longest_wait_s=0.2)
    master = Telling(computations, **({"turns": 2} | how))
    follow(script, master, World(algorithm, plan_for(experiment), {0: experiment}, computations))
    return master


@pytest.mark.parametrize("first", [1, 2])
def test_it_is_told_as_of_the_step_before_the_first_turn_and_gives_its_values(first: int) -> None:
    seen = []

    def script(run: Any, e: Any) -> None:
        (actor,) = run.groups("actor")
        later = actor.told("b", 2, blocking=False)
        seen.append((actor.told("a", 1), actor.of_first(3), later.result(), e.seed, float(run.rng("x").random())))
        for _ in run.steps():
            seen.append(actor.told("a", 1))

    said = course(script, first=first, state=None if first == 1 else "{}")
    before = first - 1
    assert seen[0][:3] == (
        [["actor_told_2", 0], ["actor_told_2", 1]],
        ["actor_of_first", 0],
        [["actor_told", 0], ["actor_told", 1]],
    )
    assert seen[1:] == [[["actor_told", 0], ["actor_told", 1]]] * (3 - first)
    asks = [it for it in said.asked if isinstance(it, CallAsked | NextTurn)]
    assert [(it.step, it.number, it.call, it.cut, it.arguments) for it in asks[:3]] == [
        (before, 1, "actor_told", ((0,), (1,)), '["b",2]'),
        (before, 2, "actor_told_2", ((0,), (1,)), '["a",1]'),
        (before, 3, "actor_of_first", ((0,),), "[3]"),
    ]
    assert asks[3] == NextTurn(first) and said.ends[0].number == 2 and said.ended
    assert re.fullmatch(r"test_before_loop.py:\d+", asks[0].at)


def test_a_script_without_a_loop_may_ask_too() -> None:
    said = course(lambda run, e: run.group("actor").told("a", 1))
    assert [type(it) for it in said.asked] == [CallAsked, ScriptEnded]


REFUSED = {
    "actor.generate()": "actor.generate: the loop has not begun",
    "actor.double(None, 2.0)": "actor.double: the loop has not begun",
    "critic.pull(None, 0.1)": "critic.pull: the loop has not begun",
    "critic.inference()": "critic.inference: the loop has not begun",
    "run.once(print)": "run.once(print): the loop has not begun",
    "run.compute(len, None)": "run.compute(len): the loop has not begun",
    "steps = run.steps(); actor.told('a', 1)": "actor.told: no turn is open",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_belongs_to_a_step_is_refused_before_the_loop(line: str) -> None:
    names: dict[str, Any] = {}
    body = "def script(run, e):\n    actor, critic = run.groups('actor', 'critic')\n    {}\n    [*run.steps()]\n"
    exec(body.format(line), names)
    with pytest.raises(UserCodeError, match=re.escape(REFUSED[line])) as error:
        course(names["script"])
    assert error.value.advice[0].startswith("Calls belong into the loop")


def test_after_the_loop_nothing_may_be_asked() -> None:
    def script(run: Any, e: Any) -> None:
        for _ in run.steps():
            pass
        run.group("actor").told("a", 1)

    with pytest.raises(UserCodeError, match=r"actor.told: no turn is open"):
        course(script)


def test_a_future_of_what_comes_before_is_not_read_in_the_loop() -> None:
    def script(run: Any, e: Any) -> None:
        later = run.group("actor").told("a", 1, blocking=False)
        for _ in run.steps():
            later.result()

    with pytest.raises(UserCodeError, match=r"actor_told's result: it is of step 0, and step 1 has begun"):
        course(script)


def test_steps_that_are_prepared_ahead_follow_what_comes_before() -> None:
    said = course(before_script.ahead)
    kinds = [type(it) for it in said.asked if isinstance(it, CallAsked | NextTurn | TurnEnded)]
    assert kinds[:2] == [CallAsked, NextTurn] and said.calls[0].step == 0 and said.ends[-1].step == 2


def test_the_rehearsal_covers_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    experiment = algorithm_of(ALGORITHM).experiment(algorithm=ALGORITHM, control=ControlConfig(steps=3))
    (note,) = rehearsal.rehearse(experiment)
    assert "actor_told" in note and "actor_item" not in note and "critic_spread" not in note


def test_what_is_refused_is_refused_before_anything_is_submitted(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(
        "from dataclasses import replace\n\nfrom hpcrl.recipes import toy\n\n\n"
        "def loop(run, e):\n    run.group('actor').generate()\n    [*run.steps()]\n\n\n"
        "TOY = replace(toy.ALGORITHM, script=loop)\n"
    )
    name = f"{tmp_path}/loop.py:TOY"
    experiment = algorithm_of(name).experiment(algorithm=name, control=ControlConfig(steps=3))
    with pytest.raises(ConfigurationError, match=r"(?s)loop\.py:7: actor\.generate: the loop has not begun"):
        [*rehearsal.rehearse(experiment)]

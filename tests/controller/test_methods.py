"""Registered methods as a script asks for them: what is said to the master, and what is refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support import registered_script, scripted
from support.script_advice import OF_METHODS

from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.controller import rehearsal
from hpcrl.controller.computations import Computations
from hpcrl.controller.run import World, follow
from hpcrl.controller.ways import OF_OTHER_WORKERS
from hpcrl.errors import ConfigurationError, UserCodeError
from hpcrl.placement.plan import plan_for
from hpcrl.recipes.algorithm import algorithm_of

ALGORITHM = f"{Path(registered_script.__file__)}:ALGORITHM"
LOOP = """
def script(run, e):
    actor, critic = run.groups("actor", "critic")
    for step in run.steps():
        batch = step.batch()
        drawn = batch.union(actor.generate(batch))
        {}
"""


def asked(line: str, recorded: Any = ()) -> Any:
    names: dict[str, Any] = {}
    exec(LOOP.format(line), names)
    algorithm = algorithm_of(ALGORITHM)
    experiment = algorithm.experiment(algorithm=ALGORITHM, control=ControlConfig(steps=1))
    computations = Computations(algorithm.forms(experiment))
    master = scripted.FakeMaster(computations, turns=1, parts={1: recorded})
    follow(names["script"], master, World(algorithm, plan_for(experiment), {0: experiment}, computations))
    return master.calls[-1]


def test_a_method_of_values_is_asked_for_on_the_numbers_of_its_workers() -> None:
    call = asked("actor.told('a', 3, blocking=False)")
    assert (call.call, call.ids, call.cut, call.inputs) == ("actor_told", ("0", "1"), ((0,), (1,)), {})
    assert json.loads(call.arguments) == ["a", 3]
    elsewhere = asked("actor.item([1, 2, 3], blocking=False)", recorded=(1, 3))
    assert (elsewhere.ids, elsewhere.cut) == (("0", "1", "2"), ((0,), (1,), (2,)))


def test_a_split_of_its_own_names_the_samples_of_each_part() -> None:
    call = asked("actor.by_ends(drawn)", recorded=(1, 3))
    assert call.ids == ("r3@1", "r1@1", "r2@1") and call.cut == ((0,), (), (1, 2))
    assert asked("actor.double(drawn, 2.0)").cut == ()


@pytest.mark.parametrize("advice", OF_METHODS)
def test_a_method_that_is_asked_for_as_its_advice_says_gets_further(advice: str) -> None:
    wrong, right = OF_METHODS[advice]
    with pytest.raises(UserCodeError) as error:
        asked(wrong)
    pattern = re.escape(advice.partition(": ")[2]).replace(re.escape("{}"), ".*")
    assert any(re.fullmatch(pattern, each, re.DOTALL) for each in error.value.advice), error.value.advice
    asked(right)


def test_a_list_for_fewer_workers_than_asked_before_is_told_so() -> None:
    said = r"of 3 workers\. It was asked for so before: .* there are 2 workers now"
    with pytest.raises(UserCodeError, match=said) as error:
        asked("actor.item([*actor.ranks])", recorded=(1, 3))
    assert error.value.advice == (OF_OTHER_WORKERS,)


def test_the_rehearsal_answers_for_methods() -> None:
    control = ControlConfig(steps=3, evaluate=Frequency(steps=2))
    experiment = algorithm_of(ALGORITHM).experiment(algorithm=ALGORITHM, control=control)
    assert not [note for note in rehearsal.rehearse(experiment) if "actor_told" in note]


def test_a_method_that_there_is_not_is_refused_in_the_rehearsal(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(
        "from dataclasses import replace\n"
        f"import sys\nsys.path.append({str(Path(registered_script.__file__).parents[1])!r})\n"
        "from support.registered_script import ALGORITHM\n"
        + LOOP.format("actor.tolled('a')")
        + "\n\nOTHER = replace(ALGORITHM, script=script)\n"
    )
    name = f"{tmp_path}/loop.py:OTHER"
    experiment = algorithm_of(ALGORITHM).experiment(algorithm=name, control=ControlConfig(steps=3))
    with pytest.raises(ConfigurationError, match=r"actor has no call 'tolled'. The recipe has of it: .*actor_told"):
        [*rehearsal.rehearse(experiment)]

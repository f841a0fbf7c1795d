"""Scripts that do what an error advises get further."""

import re
import threading

import msgspec
import numpy as np
import pytest
from support import scripted
from support.script_advice import IN_A_LOOP

from hpcrl.dataflow.graph import MFC
from hpcrl.errors import UserCodeError

LOOP = """
def script(run, e):
    actor, critic, reference, reward = run.groups("actor", "critic", "reference", "reward")
    kept = []
    run.state["begun"] = 1
    for step in run.steps():
        batch = step.batch()
        drawn = batch.union(actor.generate(batch))
        {}
"""


def same(rows, *arguments):
    return {"s": rows["r"]}


def more_calls() -> tuple[MFC, ...]:
    """Two of one method, and two whose names clash where one is asked for again."""
    critic = next(call for call in scripted.CALLS if call.name == "critic_inf")
    others = [
        *(msgspec.structs.replace(critic, name=name, method="many") for name in ("critic_inf", "critic_one")),
        *(
            MFC(name, "actor", "generate", ("x",), (key,), method="pair")
            for name, key in (("pair", "p"), ("pair_2", "q"))
        ),
    ]
    return (*(call for call in scripted.CALLS if call.name != "critic_inf"), *others)


def follow(line: str) -> None:
    names = {"threading": threading, "np": np, "same": same}
    exec(LOOP.format(line), names)
    scripted.course(names["script"])


@pytest.mark.parametrize("advice", IN_A_LOOP)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_script_that_follows_its_advice_gets_further(advice, monkeypatch):
    monkeypatch.setattr(scripted, "CALLS", more_calls())
    wrong, right = IN_A_LOOP[advice]
    with pytest.raises(UserCodeError) as error:
        follow(wrong)
    pattern = re.escape(advice.partition(": ")[2]).replace(re.escape("{}"), ".*")
    assert any(re.fullmatch(pattern, each, re.DOTALL) for each in error.value.advice), error.value.advice
    follow(right)

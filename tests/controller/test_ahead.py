"""Steps that a script prepares ahead: in which order it asks, what it sees, and what it must not do."""

import json
import random
import re
import threading
from dataclasses import replace

import numpy as np
import pytest
from support.script_advice import IN_PREPARE, OF_A_LAG
from support.scripted import EVALUATING, course, world_with

from hpcrl.controller.run import follow
from hpcrl.errors import UserCodeError
from hpcrl.wire.script_messages import CallAsked, LoopAt, NextTurn, Prepared, ReadsAhead, ScriptEnded, TurnEnded


def script_of(lag, seen, sees=lambda run, step: None):
    def prepare(run, e, step):
        actor, reward = run.groups("actor", "reward")
        sees(run, step)
        seen.append((step.number, run.state["n"], int(run.rng("x").integers(1000)), threading.get_ident()))
        step.log(prepared=step.number)
        batch = step.batch()
        batch = batch.union(actor.generate(batch))
        return batch.union(reward.score(batch))

    def script(run, e):
        (critic,) = run.groups("critic")
        run.state.setdefault("n", 100)
        for step in run.steps(prepare=prepare, lag=lag):
            assert int(run.rng("x").integers(1000)) == next(x for number, _, x, _ in seen if number == step.number)
            values = critic.inference(step.prepared)
            run.state["n"] += 1
            step.log(mean=step.prepared.union(values).mean("v"))

    return script


@pytest.mark.parametrize("lag", [0, 1, 2, 3])
def test_a_step_is_prepared_from_the_state_that_is_so_many_steps_old(lag):
    seen = []
    said = course(script_of(lag, seen), turns=5)
    assert [(number, n) for number, n, _, _ in seen] == [(i, 100 + max(0, i - 1 - lag)) for i in range(1, 6)]
    assert {thread == threading.get_ident() for *_, thread in seen} == {lag == 0}
    for step in range(1, 6):
        own = [it for it in said.asked if getattr(it, "step", 0) == step and not isinstance(it, ScriptEnded)]
        asks = [it for it in own if isinstance(it, CallAsked | TurnEnded)]
        assert [it.number for it in asks] == [1, 2, 3, 4]
        assert [it.call for it in asks[:3]] == ["actor_gen", "rew_inf", "critic_inf"]
        assert asks[-1].logged["prepared"] == step and "mean" in asks[-1].logged
        kinds = [type(it) for it in own if not isinstance(it, CallAsked | TurnEnded)]
        assert [it for it in kinds if it in (NextTurn, ReadsAhead, Prepared, LoopAt)] == (
            [NextTurn, ReadsAhead, Prepared, LoopAt] if lag else [NextTurn]
        )
    if lag:
        first = {(type(it), it.step): place for place, it in reversed([*enumerate(said.asked)])}
        for step in range(2 + lag, 6):
            assert first[TurnEnded, step - 1 - lag] < first[NextTurn, step]
        assert [it.roles for it in said.asked if isinstance(it, ReadsAhead)] == [("actor", "reward")] * 5


def test_what_begins_anew_prepares_from_the_states_of_the_checkpoint():
    seen = []
    states = tuple(json.dumps({"n": n}) for n in (102, 103))
    again = course(script_of(1, seen), turns=5, first=4, state=states[1], earlier=states[:1])
    assert [(number, n) for number, n, _, _ in seen] == [(4, 102), (5, 103)]
    whole = course(script_of(1, []), turns=5)
    ours, theirs = ([it for it in of.asked if isinstance(it, CallAsked | TurnEnded)] for of in (again, whole))
    assert {(it.step, it.number): it for it in ours} == {(it.step, it.number): it for it in theirs if it.step > 3}


def test_what_raises_while_it_prepares_ends_the_script():
    def fails(run, step):
        if step.number == 3:
            raise KeyError("nothing here")

    with pytest.raises(UserCodeError, match=r"failed in step 3.\n(.|\n)*test_ahead.py(.|\n)*KeyError: 'nothing here'"):
        course(script_of(1, [], fails), turns=5)


LOOP = """
def script(run, e):
    taken = run.groups("actor")
    def prepare(run, e, step):
        made = None
        {}
        return made
    for step in zip({}):
        pass
"""


def follow_lines(prepare: str, steps: str, **how) -> None:
    names = {"np": np}
    exec(LOOP.format(prepare, f"run.steps({steps})"), names)
    world, master = world_with(names["script"], None, **how)
    follow(names["script"], master, replace(world, rehearses="np.random" in prepare or "rng" in prepare))


@pytest.mark.parametrize("advice", [*IN_PREPARE, *OF_A_LAG])
def test_who_prepares_as_advised_gets_further(advice):
    wrong, right = (IN_PREPARE | OF_A_LAG)[advice]
    goes_on = {"first": 4, "state": "{}", "earlier": ("{}",)}
    lines = [
        (line, "prepare=prepare, lag=1", {}) if advice in IN_PREPARE else ("pass", line, goes_on)
        for line in (wrong, right)
    ]
    with pytest.raises(UserCodeError) as error:
        follow_lines(lines[0][0], lines[0][1], **lines[0][2])
    pattern = re.escape(advice.partition(": ")[2])
    assert any(re.fullmatch(pattern, each, re.DOTALL) for each in error.value.advice), error.value
    follow_lines(lines[1][0], lines[1][1], **lines[1][2])


def test_the_lag_is_that_of_the_settings():
    class Lagging(type(EVALUATING)):
        lag = 1

    experiments = {0: Lagging(control=EVALUATING.control)}
    with pytest.raises(UserCodeError, match=r"run.steps\(lag=2\), but lag = 1 in the settings") as error:
        course(script_of(2, []), experiments, turns=3)
    assert error.value.advice == ("Write run.steps(prepare=…, lag=e.lag).",)
    assert course(script_of(1, []), experiments, turns=3).ended


def test_what_is_done_outside_beside_the_loop_leaves_the_numbers_that_it_draws() -> None:
    began, drawn, done = (threading.Event() for _ in range(3))

    def send(key: str) -> None:
        began.set()
        assert drawn.wait(30)

    def prepare(run, e, step):
        run.groups("reward")
        if step.number == 2:
            run.once(send)
            done.set()

    numbers = []

    def script(run, e):
        for step in run.steps(prepare=prepare, lag=1):
            if step.number == 1:
                assert began.wait(30)
                numbers.extend((random.random(), np.random.random()))
                drawn.set()
                assert done.wait(30)
                numbers.extend((random.random(), np.random.random()))

    course(script, turns=2)
    assert len(set(numbers)) == 4

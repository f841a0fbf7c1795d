"""Calls that are made elsewhere than at their role's home: what of `calls` is refused, and in which words."""

from dataclasses import replace

import pytest
from support.chaos import toy_experiment

from hpcrl.placement.check import placement_problems


def problems(calls, **changes):
    return [problem.text for problem in placement_problems(replace(toy_experiment(), calls=calls, **changes))]


def test_calls_may_be_made_elsewhere_and_at_home():
    assert problems({"actor_gen": {"mesh": "0"}, "critic_inf": {"mesh": 1}, "eval_gen": {"layout": "d2"}}) == []
    assert problems({"actor_gen": {"layout": "t2"}, "eval_gen": {"layout": "p2"}}) == []


@pytest.mark.parametrize(
    ("calls", "problem"),
    [
        (
            {"actor_gne": {"mesh": "0"}},
            "calls places actor_gne, but the calls are actor_gen, rew_inf, ref_inf, critic_inf, actor_train, "
            "critic_train, eval_gen, eval_rew. The nearest is actor_gen.",
        ),
        ({"actor_gen": "d2"}, "calls.actor_gen = d2 must be a mapping with layout, mesh, backend, python, micro_ba"),
        (
            {"actor_gen": {"mesh": "0", "micro_batch_tokens": 8}},
            "calls.actor_gen.micro_batch_tokens = 8 cuts what",
        ),
        ({"actor_gen": {"layuot": "d2"}}, "calls.actor_gen = {'layuot': 'd2'} must be a mapping with layout"),
        ({"actor_gen": {"between": "gone"}}, "calls.actor_gen = {'between': 'gone'} must be a mapping with layout"),
        (
            {"actor_train": {"mesh": "0"}},
            "calls.actor_train places a train_step, but what changes a role is done at its home.",
        ),
        (
            {"actor_gen": {"mesh": "0-2"}},
            'calls.actor_gen.mesh = "0-2" names worker 2, but the cluster has workers 0 to 1.',
        ),
        ({"actor_gen": {"layout": "x2"}}, 'calls.actor_gen.layout = "x2" is not a layout: '),
        (
            {"actor_gen": {"layout": "d4"}},
            "calls.actor_gen.layout = d4 needs dp·tp·pp = 4·1·1 = 4 workers, but cluster.nodes · "
            "cluster.workers_per_node = 1 · 2 = 2.",
        ),
        (
            {"critic_inf": {"layout": "d2"}},
            'calls.critic_inf.layout = d2 needs dp·tp·pp = 2·1·1 = 2 workers, but critic.mesh = "1" has 1.',
        ),
        (
            {"actor_gen": {"between": "drop"}},
            "calls.actor_gen.between = drop says what becomes of a copy, but the call is made at actor's home.",
        ),
        (
            {"ref_inf": {"mesh": "0"}},
            "All calls of reference are made elsewhere than at its home (calls.ref_inf), where nobody would use it.",
        ),
    ],
)
def test_what_does_not_fit_is_named(calls, problem):
    (text,) = problems(calls)
    assert text.startswith(problem)


def test_one_copy_is_treated_one_way_between_its_calls():
    calls = {"actor_gen": {"mesh": "0", "between": "drop"}, "eval_gen": {"mesh": "0", "between": "keep"}}
    (problem,) = placement_problems(replace(toy_experiment(), calls=calls))
    assert problem.text == (
        "calls.eval_gen.between = keep, but calls.actor_gen.between = drop, and one copy of actor makes both."
    )
    assert problem.advice == "Set calls.eval_gen.between."
    calls["eval_gen"]["between"] = "drop"
    assert problems(calls) == []


def test_an_evaluation_that_is_not_made_may_be_placed():
    control = replace(toy_experiment().control, evaluate=type(toy_experiment().control.evaluate)())
    assert problems({"eval_gen": {"mesh": "0"}}, control=control) == []


def test_every_entry_has_its_problem():
    assert len(problems({"actor_gne": {}, "critic_train": {}, "actor_gen": {"mesh": "9"}, "critic_inf": {}})) == 3


def test_a_role_that_has_no_parameters_is_placed_as_a_whole(load):
    with pytest.raises(Exception, match="which is where it is loaded: no parameters of it are sent") as raised:
        load("calls={rew_inf: {mesh: 0}}")
    assert raised.value.advice == ("Set reward.layout and reward.mesh, and leave out calls.rew_inf.",)

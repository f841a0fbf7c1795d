"""Candidates: what settings say, what is made of one, and settings that say it again."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.experiments import load_config, ppo_values, write_config, write_inputs

from hpcrl.config.control import Frequency
from hpcrl.config.environment import EnvironmentConfig
from hpcrl.placement.candidate import Candidate, Spot, candidate_of, settings_with
from hpcrl.placement.layouts import Layout
from hpcrl.placement.plan import ModelName, make_plan, plan_for

LAYOUTS = st.sampled_from(
    [(Layout(4, 1, 1), (0, 1, 2, 3)), (Layout(1, 2, 1), (2, 3)), (Layout(1, 1, 2), (0, 2)), (Layout(1, 1, 1), (1,))]
)
TOKENS = st.sampled_from((16384, 4096))
BETWEEN = st.sampled_from((None, "keep", "drop"))


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("candidate")
    write_inputs(folder)
    values = ppo_values() | {"cluster": {"nodes": 2, "workers_per_node": 2}}
    values["data"] = values["data"] | {"train": str(folder / "rows.jsonl")}
    for role in ("actor", "critic", "reference"):
        values[role] = values.get(role, {}) | {"path": str(folder / "model")}
    return load_config(write_config(folder / "ppo.yaml", values))


@given(data=st.data())
@settings(max_examples=60)
def test_settings_made_of_a_candidate_give_it_again(experiment, data):
    homes = {
        role: Spot(spot.place.on(*data.draw(LAYOUTS)), data.draw(TOKENS)) if spot.micro_batch_tokens else spot
        for role, spot in candidate_of(experiment, 2).homes.items()
    }
    calls = {}
    for call, role in (("actor_gen", "actor"), ("critic_inf", "critic")):
        if data.draw(st.booleans()):
            place, between = homes[role].place.on(*data.draw(LAYOUTS)), data.draw(BETWEEN)
            calls[call] = Spot(place, data.draw(TOKENS), None if place == homes[role].place else between)
    if "actor_gen" in calls and data.draw(st.booleans()):
        calls["eval_gen"] = calls["actor_gen"]
    settled = settings_with(experiment, Candidate(homes, calls))
    again = candidate_of(settled, 2)
    assert again.homes == homes
    for call, role in (("actor_gen", "actor"), ("critic_inf", "critic"), ("actor_train", "actor")):
        assert again.at(call, role) == Candidate(homes, calls).at(call, role)
    assert plan_for(settled).replicas == make_plan(settled, again, 2).replicas


def test_what_gives_a_candidate_stays_as_it_is_written(experiment):
    actor = replace(experiment.actor, layout="d2p2")
    written = replace(experiment, calls={"actor_gen": {"mesh": "node1"}}, actor=actor)
    settled = settings_with(written, candidate_of(written, 2))
    assert settled.calls == written.calls and settled.actor == written.actor
    assert (settled.critic.layout, settled.critic.mesh) == ("d4t1p1", None)


def test_a_call_at_home_may_have_micro_batches_of_its_own(experiment):
    plan = plan_for(replace(experiment, calls={"critic_inf": {"micro_batch_tokens": 512}}))
    assert (plan.at["critic_inf"], plan.micro_batches["critic_inf"]) == (plan.at["critic_train"], 512)
    assert plan.micro_batches["critic_train"] == experiment.critic.micro_batch_tokens


def test_further_turns_are_made_where_the_first_is_unless_they_are_placed_themselves(experiment):
    held_out = replace(experiment.data, evaluate=experiment.data.train)
    environment = EnvironmentConfig(function="tool.py:answer", max_turns=3)
    talking = replace(
        experiment,
        environment=environment,
        data=held_out,
        control=replace(experiment.control, evaluate=Frequency(steps=1)),
    )
    away = replace(talking, calls={"actor_gen": {"mesh": "node1"}})
    plan, turns = plan_for(away), ("actor_gen", "actor_turn2_gen", "actor_turn3_gen", "eval_gen", "eval_turn3_gen")
    assert {plan.at[call] for call in turns} == {ModelName("actor", 1)}
    candidate = candidate_of(away, 2)
    assert settings_with(away, candidate).calls == away.calls
    last = {name: spot for name, spot in candidate.calls.items() if name != "actor_turn3_gen"}
    settled = settings_with(away, replace(candidate, calls=last))
    assert settled.calls.keys() == {"actor_gen", "actor_turn3_gen"}
    placed = plan_for(settled).at
    assert [placed[call].replica for call in turns] == [1, 1, 0, 1, 1]

"""Roles that do not fit their workers, batches that do not fill them, models that are not supported."""

import json
from dataclasses import replace

import pytest
from support.chaos import toy_experiment
from support.experiments import QWEN2_TINY

from hpcrl.config.ema import EMAConfig
from hpcrl.config.model import PlacementConfig
from hpcrl.errors import ConfigurationError
from hpcrl.placement.check import placement_problems


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            ["actor.layout=d8"],
            "d8 needs dp·tp·pp = 8·1·1 = 8 workers, but cluster.nodes · cluster.workers_per_node = 1 · 2 = 2.",
        ),
        (["critic.layout=d2", "critic.mesh=1"], 'workers, but critic.mesh = "1" has 1.'),
        (["actor.layout=2x2"], 'actor.layout = "2x2" is not a layout'),
        (["reward.mesh=0-5"], 'reward.mesh = "0-5" names worker 5, but the cluster has workers 0 to 1'),
        (
            ["reward.layout=t2"],
            "reward.layout = t2 splits a model over workers by tp, but reward has no model, and is split over dp only.",
        ),
        (["cluster.nodes=5"], "data.batch_size gives 8 samples per step, but actor.layout has dp = 10"),
        (["generation.max_new_tokens=120"], "= 136, but actor.path has max_position_embeddings = 128"),
        (
            ["control.stop_when=eval_reward/accuracy > 1", "data.evaluate=rows.jsonl", "control.evaluate.steps=1"],
            "a metric of a call 'eval_reward', but the calls are actor_gen",
        ),
        (["control.stop_when=actor_trian/loss < 1"], "a metric of a call 'actor_trian', but the calls are actor_gen"),
    ],
)
def test_what_does_not_fit_is_named(load, overrides, problem):
    with pytest.raises(ConfigurationError) as raised:
        load(*overrides)
    assert any(problem in text for text in raised.value.problems)


@pytest.mark.parametrize(("mesh", "layout"), [(None, None), ("0-1", "d2"), ("1", "d1"), ("0-1", "p2")])
def test_a_role_that_is_blended_is_placed_anywhere(mesh, layout):
    toy = toy_experiment(workers_per_node=2)
    reference = PlacementConfig(mesh=mesh, layout=layout)
    following = replace(toy, toy=replace(toy.toy, reference_ema=EMAConfig(decay=0.9)), reference=reference)
    assert [problem.text for problem in placement_problems(following)] == []
    assert not [*placement_problems(replace(toy, reference=reference))]


def test_a_model_of_an_unknown_family_is_refused(load, tmp_path):
    (tmp_path / "model" / "config.json").write_text(json.dumps(QWEN2_TINY | {"model_type": "unheard_of"}))
    with pytest.raises(ConfigurationError) as raised:
        load()
    assert [text.partition(":")[0] for text in raised.value.problems] == ["actor.path", "reference.path", "critic.path"]


def other_model(tmp_path, **changes):
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN2_TINY | changes))
    (folder / "model.safetensors").touch()
    return folder


def test_only_a_reference_of_the_actors_shape_can_follow_it(load, tmp_path):
    folder = other_model(tmp_path, num_hidden_layers=1)
    with pytest.raises(ConfigurationError) as raised:
        load("ppo.kl.mode=reward", "ppo.kl.reference_ema.decay=0.9", f"reference.path={folder}")
    (problem,) = raised.value.problems
    assert problem.startswith("reference.path has layers.") and "ref_blend blends actor into reference" in problem


@pytest.mark.parametrize("role", ["critic", "reference"])
def test_every_model_needs_positions_for_the_longest_sequence(load, tmp_path, role):
    folder = other_model(tmp_path, max_position_embeddings=31)
    with pytest.raises(ConfigurationError) as raised:
        load(f"{role}.path={folder}")
    (problem,) = raised.value.problems
    assert f"= 32, but {role}.path has max_position_embeddings = 31" in problem


def test_the_bound_of_positions_is_called_as_in_config_json(load, tmp_path):
    small = {"model_type": "gpt2", "n_positions": 31, "vocab_size": 64, "n_embd": 32, "n_head": 4, "n_layer": 1}
    folder = other_model(tmp_path)
    (folder / "config.json").write_text(json.dumps(small))
    with pytest.raises(ConfigurationError) as raised:
        load(f"critic.path={folder}")
    (problem,) = raised.value.problems
    assert "= 32, but critic.path has n_positions = 31" in problem


def test_a_bound_of_prompts_that_nobody_set_is_no_part_of_the_sum(load):
    none = "data.max_prompt_tokens=null"
    assert load(none, "generation.max_new_tokens=127")
    with pytest.raises(ConfigurationError) as raised:
        load(none, "generation.max_new_tokens=128")
    for problem in raised.value.problems:
        assert problem.startswith("generation.max_new_tokens = 128 leaves prompts no room: ")
        assert "data.max_prompt_tokens" not in problem


@pytest.mark.parametrize("changes", [["actor.path=none", "reference.path=none"], ["generation.max_new_tokens=200"]])
def test_what_is_wrong_with_the_actors_model_is_not_said_of_the_reference_too(load, changes):
    for kl in ("none", "reward"):
        with pytest.raises(ConfigurationError) as raised:
            load(*changes, f"ppo.kl.mode={kl}", "critic.path=model")
        assert not [problem for problem in raised.value.problems if "reference" in problem]
        assert [problem for problem in raised.value.problems if "actor.path" in problem]


@pytest.mark.parametrize(("role", "tokens"), [("critic", 63), ("reference", 63), ("reference", 65)])
def test_the_roles_know_the_same_tokens(load, tmp_path, role, tokens):
    folder = other_model(tmp_path, vocab_size=tokens)
    with pytest.raises(ConfigurationError) as raised:
        load(f"{role}.path={folder}")
    (problem,) = raised.value.problems
    assert problem.startswith(f"{role}.path has vocab_size = {tokens}, but actor.path has 64")


def test_a_critic_may_know_more_tokens(load, tmp_path):
    assert load(f"critic.path={other_model(tmp_path, vocab_size=65)}")


@pytest.mark.parametrize("changes", [{"use_mrope": True}, {"hidden_act": "gelu"}, {"num_attention_heads": 0}])
def test_what_no_worker_would_load_is_refused_before_anything_is_made(load, tmp_path, changes):
    folder = other_model(tmp_path, **changes)
    with pytest.raises(ConfigurationError) as raised:
        load(f"critic.path={folder}")
    assert all(problem.startswith(f"critic.path: {folder}") for problem in raised.value.problems)


def test_problems_of_values_and_of_placement_are_reported_together(load):
    with pytest.raises(ConfigurationError) as raised:
        load("seed=-1", "actor.layout=d8", "cluster.nods=1")
    assert len(raised.value.problems) == 3


def test_more_nodes_need_no_new_layouts(load):
    assert load("cluster.nodes=4").cluster.nodes == 4

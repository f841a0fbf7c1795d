"""Models that cannot be cut over the workers of a layout, and what would do."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.experiments import QWEN2_TINY, load_config, ppo_values, write_config, write_inputs, write_model
from support.tiny_models import gpt2_config, mixtral_config

from hpcrl.errors import ConfigurationError
from hpcrl.families.config import Experts
from hpcrl.families.reader import config_from_json
from hpcrl.placement.check import ALL_CHECKS
from hpcrl.placement.check_cuts import LARGEST_TP, tensor_notices, uncut
from hpcrl.placement.shards import Cut, held

WHOLE = """
from hpcrl.backends.backend import Backend

WHOLE = Backend(train=True, generate=True, axes=("dp", "tp", "pp"), dtypes=("fp32",), engine="nowhere:Engine")
"""
MODEL = config_from_json(QWEN2_TINY, "config.json")


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Of a cluster of 2 nodes with 6 workers each; the actor's backend splits over all axes."""
    write_inputs(tmp_path)
    write_model(tmp_path / "model", num_attention_heads=12, head_dim=8, num_key_value_heads=2, num_hidden_layers=4)
    (tmp_path / "whole.py").write_text(WHOLE)
    monkeypatch.chdir(tmp_path)
    values = ppo_values() | {"cluster": {"nodes": 2, "workers_per_node": 6}}
    values["data"]["batch_size"] = 12
    path = write_config(tmp_path / "ppo.yaml", values)
    backend = [f"{role}.backend=whole.py:WHOLE" for role in ("actor", "critic", "reference")]
    return lambda *overrides: load_config(path, [*backend, *overrides], ALL_CHECKS)


def refused(load, *overrides):
    with pytest.raises(ConfigurationError) as raised:
        load(*overrides)
    (problem,) = raised.value.found
    return problem


@pytest.mark.parametrize(
    ("layout", "words", "right"),
    [
        ("t12", "", ""),
        ("d2t6", "", ""),
        ("d4t3", "2 key and value heads, which are neither a multiple nor a divisor of it.", "d6t2"),
        ("p3t4", "", ""),
    ],
)
def test_tensor_ranks_have_whole_heads(load, layout, words, right):
    if not words:
        assert load(f"actor.layout={layout}").actor.layout == layout
        return
    problem = refused(load, f"actor.layout={layout}")
    assert problem.text.endswith(words)
    assert problem.text.startswith("actor.layout = d4t3 cuts each layer over tp = 3 workers, but actor.path has ")
    assert problem.advice == "Set actor.layout to one with t1, t2, t4, t6, t12."
    assert load(f"actor.layout={right}")


def test_the_mlps_neurons_and_the_heads_are_named_with_their_numbers(load):
    problem = refused(load, "actor.layout=t8", "actor.mesh=0-7")
    assert problem.text.endswith("but actor.path has 12 attention heads.")
    write_model(Path("model"), num_attention_heads=12, head_dim=8, num_key_value_heads=1, intermediate_size=50)
    problem = refused(load, "actor.layout=t4p2", "actor.mesh=0-7")
    assert problem.text.endswith("but actor.path has 50 neurons in an MLP.")
    assert problem.advice == "Set actor.layout to one with t1, t2."
    assert load("actor.layout=d2t2p2", "actor.mesh=0-7")


def test_a_router_that_is_not_there_has_no_loss(load):
    problem = refused(load, "actor.router_aux_coef=0.5")
    assert problem.text == (
        "actor.router_aux_coef = 0.5, but actor.path has no experts, and so no router: it has to be 0."
    )
    assert set(problem.keys) == {"actor.router_aux_coef", "actor.path"}


def test_the_neurons_of_experts_are_cut(load):
    model = mixtral_config(intermediate_size=10)
    assert uncut(model, 4) == "10 neurons in an expert"
    assert uncut(model, 2) == ""


def test_whole_experts_are_cut_by_their_number(load):
    model = mixtral_config(experts=Experts(6, 2, 10)).with_experts_cut("whole")
    assert uncut(model, 4) == "6 experts"
    assert uncut(model, 2) == ""
    problem = refused(load, "actor.experts=whole")
    assert problem.text == "actor.experts = whole, but actor.path has no experts."
    assert problem.advice == "Leave actor.experts out."


def test_every_stage_has_a_block(load):
    problem = refused(load, "actor.layout=d2p6")
    assert problem.text == (
        "actor.layout = d2p6 has pp = 6 stages, but actor.path has 4 blocks, and each stage needs one."
    )
    assert problem.advice == "Set actor.layout to one with at most p4."
    assert load("actor.layout=d3p4")


@pytest.mark.parametrize(
    "model", [MODEL, replace(MODEL, kv_heads=4), replace(gpt2_config(), blocks=2), mixtral_config()]
)
def test_what_is_proposed_is_what_can_be_cut(model):
    for tp in range(1, LARGEST_TP + 1):
        if uncut(model, tp):
            with pytest.raises(ValueError, match="cannot be cut"):
                held(model, Cut(tp=tp))
        else:
            assert held(model, Cut(tp=tp))


def test_layers_over_several_nodes_are_told(load):
    assert list(tensor_notices(load("actor.layout=d2t6", "critic.layout=d6p2"))) == []
    assert list(tensor_notices(load("actor.layout=t2p2", "actor.mesh=node0:4,5,node1:0,1"))) == []
    (notice,) = tensor_notices(load("actor.layout=t4", "actor.mesh=4-7"))
    assert notice == (
        "actor.layout = t4 cuts each layer over workers 4, 5, 6, 7, which are on nodes 0, 1: every layer waits for "
        "the network. Have tp at most the workers of a node, and stages (pp) on different nodes."
    )

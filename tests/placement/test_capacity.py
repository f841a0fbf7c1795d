"""Memory that cannot suffice is refused with what would; memory that may not is said."""

from pathlib import Path

import pytest
from support.experiments import load_config, ppo_values, write_config, write_inputs, write_model

from hpcrl.errors import ConfigurationError
from hpcrl.placement.capacity import Capacity, check_memory
from hpcrl.placement.check import ALL_CHECKS
from hpcrl.placement.memory import GIB

SEVEN_BILLION = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
HERE = "this machine has"


@pytest.fixture
def load(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    write_model(tmp_path / "model", **SEVEN_BILLION, num_key_value_heads=32, vocab_size=32000)
    monkeypatch.chdir(tmp_path)
    path = write_config(tmp_path / "ppo.yaml", ppo_values() | {"cluster": {"workers_per_node": 1, "nodes": 2}})
    return lambda *overrides: load_config(path, overrides, ALL_CHECKS)


def refused(experiment, capacity):
    with pytest.raises(ConfigurationError) as raised:
        list(check_memory(experiment, capacity))
    (problem,) = raised.value.problems
    return problem


def test_models_that_cannot_fit_are_refused_with_the_sizes_of_each_role(load):
    problem = refused(load(), Capacity(24 * GIB, "worker", HERE))
    assert "of a worker need 172.3 GiB (on a worker: actor 73.8, reference 24.6, critic 73.8" in problem
    assert "this machine has 24.0 GiB." in problem
    assert "Neither bf16 nor more nodes make it fit" in problem


def test_the_workers_of_a_node_share_what_it_has(load):
    alone, together = load("control.steps=1"), load("cluster.nodes=1", "cluster.workers_per_node=2")
    assert not list(check_memory(alone, Capacity(400 * GIB, "node", HERE)))
    assert "of a node need 344.6 GiB" in refused(together, Capacity(200 * GIB, "node", HERE))


@pytest.mark.parametrize("gib", [130, 150, 170])
def test_the_advice_fits(load, gib):
    capacity = Capacity(gib * GIB, "worker", HERE)
    advice = refused(load(), capacity).partition("It fits with ")[2].rstrip(".")
    overrides = [setting.replace(" = ", "=") for setting in advice.split(" and ")]
    assert overrides != [""]
    list(check_memory(load(*overrides), capacity))


def test_memory_for_one_call_may_be_short_and_is_said(load):
    (doubt,) = check_memory(load(), Capacity(173 * GIB, "worker", HERE))
    assert "may need" in doubt and "this machine has 173.0 GiB" in doubt and "lower micro_batch_tokens" in doubt


def test_what_nobody_knows_is_said_with_what_is_needed(load):
    (doubt,) = check_memory(load(), Capacity(None, "worker", "what the GPUs have is not known here"))
    assert doubt.startswith("a worker will need about") and "not known here" in doubt


def test_a_small_model_needs_no_word(load):
    write_model(Path("model"))
    assert not list(check_memory(load(), Capacity(None, "worker", "")))

"""The memory estimate, against numbers worked out by hand."""

import json

import pytest
from support.experiments import QWEN2_TINY, load_config, ppo_values, write_config, write_inputs

from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import ModelConfig, TrainedModelConfig
from hpcrl.families.reader import config_from_json, parameter_count
from hpcrl.placement.layouts import Layout
from hpcrl.placement.memory import GIB, Memory, estimate_roles, longest_sequence, role_memory, worker_memory_gib
from hpcrl.placement.plan import make_plan

MODEL = config_from_json(QWEN2_TINY, "config.json")
"""Hidden 32, 2 blocks, 4 heads of 8 (2 for keys and values), 48 in the MLP, vocabulary 64."""


def test_fp32_training_takes_sixteen_bytes_a_parameter_of_which_dp_shares_the_moments():
    config = TrainedModelConfig(path="m", dtype="fp32", micro_batch_tokens=10)
    memory = role_memory(MODEL, 1000, config, Layout(dp=2), cached=0)
    assert (memory.parameters, memory.gradients, memory.optimizer) == (4000, 4000, 8000 / 2)


def test_bf16_training_has_fp32_gradients_masters_and_moments():
    config = TrainedModelConfig(path="m", dtype="bf16", micro_batch_tokens=10)
    memory = role_memory(MODEL, 1000, config, Layout(), cached=0)
    assert (memory.parameters, memory.gradients, memory.optimizer) == (2000, 4000, 12000)


def test_a_model_that_is_not_trained_has_parameters_only():
    memory = role_memory(MODEL, 1000, ModelConfig(path="m"), Layout(), cached=0)
    assert (memory.parameters, memory.gradients, memory.optimizer) == (4000, 0, 0)


@pytest.mark.parametrize(("dtype", "masters"), [("fp32", 0), ("bf16", 4000)])
def test_a_blended_model_has_masters_besides_of_which_dp_has_shares(dtype, masters):
    memory = role_memory(MODEL, 1000, ModelConfig(path="m", dtype=dtype), Layout(dp=2), cached=0, blended=True)
    assert (memory.gradients, memory.optimizer) == (0, masters / 2)


def test_the_cache_holds_keys_and_values_of_every_block():
    memory = role_memory(MODEL, 0, ModelConfig(path="m", dtype="bf16"), Layout(), cached=100)
    assert memory.kv_cache == 100 * 2 * (2 * 16) * 2


def test_training_keeps_the_activations_of_all_blocks_and_inference_of_one():
    per_token = 4 * 32 + 3 * (32 + 16) + 3 * 48
    trained = role_memory(MODEL, 0, TrainedModelConfig(path="m", micro_batch_tokens=10), Layout(), cached=0)
    frozen = role_memory(MODEL, 0, ModelConfig(path="m", micro_batch_tokens=10), Layout(), cached=0)
    assert trained.activations == 10 * 2 * per_token * 4
    assert frozen.activations == 10 * 1 * per_token * 4


def test_without_a_bound_for_prompts_a_sequence_may_fill_all_positions():
    generation = GenerationConfig(max_new_tokens=16)
    assert longest_sequence(MODEL, None, generation) == 128
    assert longest_sequence(MODEL, 16, generation) == 32
    assert longest_sequence(MODEL, 1000, generation) == 128


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    values = ppo_values() | {"cluster": {"nodes": 2, "workers_per_node": 1}}
    values["reference"] |= {"mesh": "1", "dtype": "bf16"}
    return load_config(write_config(tmp_path / "ppo.yaml", values))


def test_only_roles_with_a_model_are_estimated_and_only_generation_has_a_cache(experiment):
    roles = estimate_roles(make_plan(experiment, experiment.cluster.nodes), experiment)
    assert roles.keys() == {"actor", "critic", "reference"}
    assert roles["actor"].kv_cache == 64 * (16 + 16) * 2 * (2 * 16) * 4
    assert roles["critic"].kv_cache == roles["reference"].kv_cache == 0


def test_a_critic_has_a_head_of_one_number(experiment):
    roles = estimate_roles(make_plan(experiment, experiment.cluster.nodes), experiment)
    assert roles["critic"].parameters - roles["actor"].parameters == 4 * (32 + 1)  # the tied embedding stays


def test_a_worker_holds_all_of_its_roles_and_the_largest_of_their_calls(experiment):
    roles = {
        "actor": Memory(parameters=1 * GIB, kv_cache=4 * GIB, activations=3 * GIB),
        "critic": Memory(gradients=2 * GIB, activations=5 * GIB),
        "reference": Memory(optimizer=8 * GIB, activations=1 * GIB),
    }
    assert worker_memory_gib(make_plan(experiment, experiment.cluster.nodes), roles) == (1 + 2 + 5, 1 + 2 + 8 + 5)


def test_half_a_billion_parameters_in_bf16_take_the_bytes_that_one_expects():
    fields = json.loads(
        '{"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,'
        '"num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,'
        '"max_position_embeddings": 32768, "tie_word_embeddings": true}'
    )
    model = config_from_json(fields, "config.json")
    config = TrainedModelConfig(path="m", dtype="bf16")
    memory = role_memory(model, parameter_count(model), config, Layout(), cached=0)
    assert memory.lasting == 494_032_768 * (2 + 4 + 12)

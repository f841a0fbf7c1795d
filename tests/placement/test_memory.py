"""The memory estimate, against numbers worked out by hand."""

import json
from dataclasses import replace

import pytest
from support.experiments import QWEN2_TINY, load_config, ppo_values, write_config, write_inputs

from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import ModelConfig, TrainedModelConfig
from hpcrl.families.reader import config_from_json, parameter_count
from hpcrl.placement.layouts import Layout
from hpcrl.placement.memory import (
    Memory,
    estimate_models,
    generating_memory,
    longest_sequence,
    role_memory,
)
from hpcrl.placement.plan import ModelName, plan_for
from hpcrl.placement.sizes import GIB, size_in_words
from hpcrl.placement.worker_memory import peaks

MODEL = config_from_json(QWEN2_TINY, "config.json")
"""Hidden 32, 2 blocks, 4 heads of 8 (2 for keys and values), 48 in the MLP, vocabulary 64."""
PER_TOKEN = 4 * 32 + 3 * (32 + 16) + 3 * 48
"""Numbers that a block of it keeps for a backward pass."""
VISITED = 2 * 32 + 32 + 8 + 3 * 48
"""Those that it has at once without one: rows before and after, what attention has gathered, what queries are turned
by, and its MLP's."""
PICKED = VISITED + 32
"""Those in the last block, of whose rows some go on after attention."""


def test_fp32_training_takes_sixteen_bytes_a_parameter_of_which_dp_shares_the_moments():
    config = TrainedModelConfig(path="m", dtype="fp32", micro_batch_tokens=10)
    memory = role_memory(MODEL, 1000, config, Layout(dp=2))
    assert (memory.parameters, memory.gradients, memory.optimizer) == (4000, 4000, 8000 / 2)


def test_bf16_training_has_fp32_gradients_masters_and_moments():
    config = TrainedModelConfig(path="m", dtype="bf16", micro_batch_tokens=10)
    memory = role_memory(MODEL, 1000, config, Layout())
    assert (memory.parameters, memory.gradients, memory.optimizer) == (2000, 4000, 12000)


def test_a_model_that_is_not_trained_has_parameters_only():
    memory = role_memory(MODEL, 1000, ModelConfig(path="m"), Layout())
    assert (memory.parameters, memory.gradients, memory.optimizer) == (4000, 0, 0)


@pytest.mark.parametrize(("dtype", "masters"), [("fp32", 0), ("bf16", 4000)])
def test_a_blended_model_has_masters_besides_of_which_dp_has_shares(dtype, masters):
    memory = role_memory(MODEL, 1000, ModelConfig(path="m", dtype=dtype), Layout(dp=2), blended=True)
    assert (memory.gradients, memory.optimizer) == (0, masters / 2)


@pytest.mark.parametrize(("recorded", "slots"), [("auto", 8), ("off", 5)])
def test_recorded_steps_have_more_rows_and_keep_their_logits_while_prompts_are_read(recorded, slots):
    config, generation = ModelConfig(path="m"), GenerationConfig(max_new_tokens=15, slots=5, cuda_graphs=recorded)
    made = generating_memory(Memory(), MODEL, config, Layout(), generation, max_prompt_tokens=10, device="cuda")
    plain = generating_memory(Memory(), MODEL, config, Layout(tp=2), generation, max_prompt_tokens=10, device="cuda")
    assert made.kv_cache == slots * 32 * 2 * (2 * 16) * 4  # of 25 tokens, in steps of 16
    assert plain.kv_cache == 5 * 32 * 2 * 16 * 4
    tables, prefill = 64 * 5 * 16, 50 * VISITED * 4
    assert made.drawing == 64 * 32 * 4 + (tables + prefill if recorded == "auto" else max(tables, prefill))


def test_the_cache_holds_keys_and_values_of_every_block():
    config, generation = ModelConfig(path="m", dtype="bf16"), GenerationConfig(max_new_tokens=15, slots=4)
    memory = generating_memory(Memory(), MODEL, config, Layout(), generation, max_prompt_tokens=10)
    assert memory.kv_cache == 4 * 32 * 2 * (2 * 16) * 2


def test_the_table_of_logits_is_held_with_its_gradient_as_far_as_a_chunk_goes():
    vocabulary, chunk = 2**15, 2**10
    model = replace(MODEL, vocabulary_size=vocabulary)
    for tokens, rows in ((100, 100), (2 * chunk, chunk)):
        trained = role_memory(model, 0, TrainedModelConfig(path="m", micro_batch_tokens=tokens), Layout())
        frozen = role_memory(model, 0, ModelConfig(path="m", micro_batch_tokens=tokens), Layout())
        piece = 8 * vocabulary  # of so many rows, what is made of their logits stays in a cache
        assert trained.working == 4 * (2 * rows * vocabulary + tokens * (3 * 32 + 8) + 2 * vocabulary * 32)
        assert frozen.working == 4 * (rows * vocabulary + piece + 2 * tokens * 32)


def test_softcapped_attention_holds_scores_of_a_block_of_queries_however_long_texts_are():
    model = replace(MODEL.with_head("value"), attention_softcap=50.0, max_positions=10**6)
    for tokens, scores in ((100, 4 * 100 * 100), (10_000, 2**20)):
        frozen = ModelConfig(path="m", micro_batch_tokens=tokens)
        attending = 32 + 8 + 3 * (32 + 16) + 32  # rows, what turns them, q k v as they are and turned, two outputs
        assert role_memory(model, 0, frozen, Layout()).working == 4 * (4 * scores + tokens * attending)
    drawing = [
        generating_memory(Memory(), model, frozen, Layout(), GenerationConfig(max_new_tokens=1000, slots=100), 1000)
        for model in (model, replace(model, attention_softcap=None))
    ]
    assert drawing[0].drawing - drawing[1].drawing == 4 * (4 * 2**20 + 10_000 * (attending - VISITED))


def test_a_value_head_has_no_logits():
    role = TrainedModelConfig(path="m", micro_batch_tokens=10)
    assert role_memory(MODEL.with_head("value"), 0, role, Layout()).working == 10 * 4 * (2 * 32 + 8 + 4 * 48)


def test_training_keeps_the_activations_of_all_blocks_and_inference_those_of_one_at_a_time():
    model, role = MODEL.with_head("value"), TrainedModelConfig(path="m", micro_batch_tokens=10)
    trained = role_memory(model, 0, role, Layout())
    again = role_memory(model, 0, replace(role, recompute=True), Layout())
    frozen = role_memory(model, 0, ModelConfig(path="m", micro_batch_tokens=10), Layout())
    assert trained.activations == 10 * 2 * PER_TOKEN * 4
    assert again.activations == 10 * 2 * 32 * 4
    assert again.working == trained.working + 10 * PER_TOKEN * 4
    assert (frozen.activations, frozen.working) == (0, 10 * PICKED * 4)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_ranks_that_share_layers_have_all_rows_within_them(device):
    """Matrices keep the rows that were gathered for them; what gloo has gathered it lets go late in training."""
    model, tokens = MODEL.with_head("value"), 10
    trained, frozen = (
        role_memory(model, 0, kind(path="m", micro_batch_tokens=tokens), Layout(tp=4), device=device)
        for kind in (TrainedModelConfig, ModelConfig)
    )
    late = 32 + 32 / 4 if device == "cpu" else 0
    exchanged = 32 + 32 + 32 / 4  # what it has made for all, what they have made for it, the sum of that
    assert trained.activations == tokens * 4 * 2 * ((PER_TOKEN - 2 * 32) / 4 + 2 * 32)
    assert trained.working == tokens * 4 * (2 * 32 + exchanged + 8 + late)
    assert frozen.working == tokens * 4 * (3 * 32 / 4 + 32 / 4 + 8 + 48 / 4 + exchanged)


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


def estimated(experiment):
    """The memory of each role's home."""
    models = estimate_models(plan_for(experiment), experiment)
    return {model.role: memory for model, (memory,) in models.items() if model.replica == 0}


def test_only_roles_with_a_model_are_estimated_and_only_generation_has_a_cache(experiment):
    roles = estimated(experiment)
    assert roles.keys() == {"actor", "critic", "reference"}
    assert roles["actor"].kv_cache == 64 * (16 + 16) * 2 * (2 * 16) * 4
    assert roles["critic"].kv_cache == roles["reference"].kv_cache == 0


def test_a_critic_has_a_head_of_one_number(experiment):
    roles = estimated(experiment)
    assert roles["critic"].parameters - roles["actor"].parameters == 4 * (
        64 + 64
    )  # two more begin at multiples of 64; the tied embedding stays


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (5, "5 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.00 KiB"),
        (2500, "2.44 KiB"),
        (3 * 2**20, "3.00 MiB"),
        (GIB, "1.00 GiB"),
    ],
)
def test_a_size_is_told_in_a_unit_of_which_there_is_one(size, words):
    assert size_in_words(size) == words


def test_a_worker_holds_all_of_its_roles_and_the_largest_of_their_calls(experiment):
    roles = {
        ModelName("actor"): (Memory(parameters=1 * GIB, kv_cache=4 * GIB, activations=3 * GIB),),
        ModelName("critic"): (Memory(gradients=2 * GIB, activations=5 * GIB),),
        ModelName("reference"): (Memory(optimizer=8 * GIB, activations=1 * GIB),),
    }
    plan = plan_for(experiment)
    assert [load.bytes / GIB for load in peaks(plan, roles, "cpu")] == [1 + 2 + 5, 1 + 2 + 8 + 5]


def test_half_a_billion_parameters_in_bf16_take_the_bytes_that_one_expects():
    fields = json.loads(
        '{"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,'
        '"num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,'
        '"max_position_embeddings": 32768, "tie_word_embeddings": true}'
    )
    model = config_from_json(fields, "config.json")
    config = TrainedModelConfig(path="m", dtype="bf16")
    memory = role_memory(model, parameter_count(model), config, Layout())
    assert memory.lasting == 494_032_768 * (2 + 4 + 12)

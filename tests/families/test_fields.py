import pytest

from hpcrl.errors import ConfigurationError
from hpcrl.families.config import RotaryConfig
from hpcrl.families.family import FAMILIES
from hpcrl.families.reader import config_from_json, config_to_json
from hpcrl.plugins import find

QWEN2 = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "eos_token_id": [2, 3],
}
LLAMA = QWEN2 | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        (QWEN2 | {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        (QWEN2 | {"use_sliding_window": True}, "use_sliding_window = True"),
        (QWEN2 | {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        (QWEN2 | {"attention_dropout": 0.1}, "attention_dropout = 0.1"),
        (QWEN2 | {"classifier_dropout": 0.1}, "classifier_dropout = 0.1"),
        (QWEN2 | {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        (QWEN2 | {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope type 'yarn'"),
        (QWEN2 | {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope type 'dynamic'"),
        (QWEN2 | {"rope_scaling": {"type": "linear"}}, "rope type 'linear' needs the fields"),
        (QWEN2 | {"rope_parameters": {"rope_type": "default", "mrope_section": [1]}}, "mrope_section"),
        (QWEN2 | {"quantization_config": {"bits": 4}}, "quantization_config"),
        (QWEN2 | {"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
        (QWEN2 | {"hidden_size": None}, "hidden_size = None"),
        (QWEN2 | {"head_dim": 7}, "head_dim = 7 is odd"),
        (QWEN2 | {"num_attention_heads": 3}, "no multiple of num_key_value_heads = 2"),
        (QWEN2 | {"architectures": ["Qwen2ForQuestionAnswering"]}, "Qwen2ForQuestionAnswering"),
        (QWEN2 | {"architectures": ["Qwen2ForTokenClassification"], "id2label": {"0": "a", "1": "b"}}, "2 labels"),
        (QWEN2 | {"is_encoder_decoder": True}, "is_encoder_decoder = True"),
        (LLAMA | {"attention_bias": True}, "attention_bias = True"),
        (LLAMA | {"mlp_bias": True}, "mlp_bias = True"),
        (LLAMA | {"sliding_window": 4096}, "sliding_window = 4096"),
        (QWEN2 | {"model_type": "gemma2"}, "model_type 'gemma2' is not supported; supported are llama, qwen2"),
    ],
)
def test_what_would_change_the_mathematics_is_refused_by_name(fields, name):
    with pytest.raises(ConfigurationError, match=r"here\.json|model_type") as refusal:
        config_from_json(fields, "here.json")
    assert name in str(refusal.value)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"num_attention_heads": "14"}, "num_attention_heads = '14'; a positive integer"),
        ({"num_attention_heads": 0}, "num_attention_heads = 0; a positive integer"),
        ({"num_key_value_heads": "2"}, "num_key_value_heads = '2'; a positive integer"),
        ({"head_dim": True}, "head_dim = True; a positive integer"),
        ({"rope_theta": "abc"}, "rope_theta = 'abc'; a positive number"),
        ({"rope_theta": -1.0}, "rope_theta = -1.0; a positive number"),
        ({"rope_scaling": "linear"}, "rope_scaling = 'linear'; an object"),
        ({"rope_scaling": {"type": ["linear"], "factor": 2.0}}, "rope type ['linear']"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor = '2'; a positive number"),
        ({"rope_scaling": LLAMA3 | {"original_max_position_embeddings": "8192"}}, "embeddings = '8192'; a positive"),
        ({"layer_types": 3}, "layer_types = 3"),
        ({"eos_token_id": "x"}, "eos_token_id = 'x'; a token id"),
        ({"eos_token_id": [2, None]}, "eos_token_id = [2, None]; a token id"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps = '1e-6'; a positive number"),
        ({"rms_norm_eps": -1}, "rms_norm_eps = -1; a positive number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps = nan; a positive number"),
        ({"initializer_range": "0.02"}, "initializer_range = '0.02'; a positive number"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings = 'false'; true or false"),
        ({"architectures": "Qwen2"}, "architectures names 'Qwen2'"),
        ({"architectures": [3]}, "architectures names 3"),
        ({"architectures": ["Qwen2ForTokenClassification"], "id2label": 1}, "id2label = 1; an object"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(fields, name):
    with pytest.raises(ConfigurationError, match=r"here\.json") as refusal:
        config_from_json(QWEN2 | fields, "here.json")
    assert name in str(refusal.value)


def test_all_problems_are_reported_together():
    fields = QWEN2 | {"hidden_act": "relu", "use_sliding_window": True, "something_new": 1}
    with pytest.raises(ConfigurationError) as refusal:
        config_from_json(fields, "here.json")
    lines = str(refusal.value).splitlines()
    assert len(lines) == 3
    assert all(line.startswith("here.json: ") for line in lines)


def test_fields_without_influence_are_accepted():
    config = config_from_json(QWEN2 | {"use_cache": False, "torch_dtype": "bfloat16", "temperature": 0.3}, "here.json")
    assert config.eos_token_ids == (2, 3)
    assert config.qkv_bias


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, RotaryConfig(10000.0)),
        ({"rope_theta": 5e5, "rope_scaling": None}, RotaryConfig(5e5)),
        ({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}}, RotaryConfig(5e5, "linear", 2)),
        ({"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}}, RotaryConfig(7.0)),
        ({"rope_scaling": LLAMA3}, RotaryConfig(10000.0, "llama3", 8.0, 1.0, 4.0, 128)),
        (
            {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 64}},
            RotaryConfig(10000.0, "llama3", 8.0, 1.0, 4.0, 64),
        ),
    ],
)
def test_rope_is_read_in_the_forms_of_transformers_4_and_5(fields, expected):
    assert config_from_json(LLAMA | fields, "here.json").rotary == expected


@pytest.mark.parametrize("fields", [QWEN2, LLAMA, LLAMA | {"rope_scaling": LLAMA3}, QWEN2 | {"head_dim": 16}])
@pytest.mark.parametrize("suffix", ["ForCausalLM", "ForTokenClassification", "ForSequenceClassification"])
def test_what_is_written_reads_back_the_same(fields, suffix):
    architecture = find(FAMILIES, fields["model_type"], "family").architecture
    fields = fields | {"architectures": [architecture + suffix], "num_labels": 1}
    config = config_from_json(fields, "here.json")
    assert config_from_json(config_to_json(config, "float32"), "there.json") == config


def test_a_family_refuses_to_write_a_config_that_is_not_its_own():
    config = config_from_json(QWEN2, "here.json")
    with pytest.raises(ValueError, match="qkv_bias"):
        config_to_json(config.__class__(**(vars(config) | {"family": "llama"})), "float32")

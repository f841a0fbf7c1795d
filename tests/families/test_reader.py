"""Parameter names, shapes and counts, against published numbers and transformers."""

import json

import pytest

from hpcrl.errors import ConfigurationError
from hpcrl.families.reader import config_from_json, family_of, parameter_count, parameters_of, read_config

QWEN2_5_0_5B = {
    "model_type": "qwen2",
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
QWEN2_5_7B = QWEN2_5_0_5B | {
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}
LLAMA_3_8B = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}
QWEN3_0_6B = QWEN2_5_0_5B | {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "head_dim": 128,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
}
GPT2 = {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}


def config_of(fields):
    return config_from_json(fields, "config.json")


def tensors_of(config):
    """Every tensor of the model's files and its shape there."""
    return {
        piece.name: piece.stored_shape(parameter)
        for parameter in parameters_of(config)
        for piece in family_of(config).pieces(config, parameter)
    }


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        (QWEN2_5_0_5B, 494_032_768),
        (QWEN2_5_7B, 7_615_616_512),
        (LLAMA_3_8B, 8_030_261_248),
        (QWEN3_0_6B, 596_049_920),
        (GPT2, 124_439_808),
        (GPT2 | {"n_embd": 1600, "n_layer": 48, "n_head": 25}, 1_557_611_200),
    ],
)
def test_counts_are_the_published_ones(fields, count):
    assert parameter_count(config_of(fields)) == count


SMALL = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


OWN_SIZES = dict.fromkeys(("qwen2", "llama", "mistral"), SMALL) | {
    "qwen3": SMALL | {"head_dim": 8},
    "gpt2": {"vocab_size": 40, "n_embd": 24, "n_inner": 36, "n_layer": 2, "n_head": 4, "n_positions": 64},
}


@pytest.mark.parametrize(("family", "sizes"), OWN_SIZES.items(), ids=OWN_SIZES)
@pytest.mark.parametrize("tied", [True, False])
def test_names_and_shapes_equal_those_of_transformers(family, sizes, tied):
    transformers = pytest.importorskip("transformers")
    fields = {"model_type": family, "tie_word_embeddings": tied, **sizes}
    config = transformers.AutoConfig.for_model(**fields)
    model = transformers.AutoModelForCausalLM.from_config(config)
    expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert tensors_of(config_of(fields)) == expected


def test_a_value_head_stands_in_the_place_of_the_vocabularys():
    untied = config_of(LLAMA_3_8B)
    valued = untied.with_head("value")
    assert tensors_of(untied).keys() - tensors_of(valued).keys() == {"lm_head.weight"}
    assert tensors_of(valued).keys() - tensors_of(untied).keys() == {"score.weight", "score.bias"}
    assert parameter_count(untied) - parameter_count(valued) == 128256 * 4096 - 4096 - 1


def test_an_unknown_family_is_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN2_5_0_5B | {"model_type": "rwkv"}))
    with pytest.raises(
        ConfigurationError,
        match="model_type 'rwkv' is not supported; supported are gemma, gemma2, gemma3_text, gpt2, llama, mistral,",
    ):
        read_config(tmp_path)


@pytest.mark.parametrize("fields", [[], 3, None, {"model_type": ["qwen2"]}, {"model_type": None}])
def test_what_describes_no_model_is_refused(tmp_path, fields):
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ConfigurationError, match=r"a JSON object is needed|is not supported"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads = 0; a positive integer is needed."),
        ({"max_position_embeddings": None}, "max_position_embeddings = None; a positive integer is needed."),
        ({"hidden_size": "896"}, "hidden_size = '896'; a positive integer is needed."),
        ({"rope_theta": "high"}, "rope_theta = 'high'; a positive number is needed."),
        ({"rope_scaling": 2}, "rope_scaling = 2; an object is needed."),
        ({"rope_scaling": {"type": "linear", "factor": None}}, "rope's factor = None; a positive number is needed."),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, "rope type ['yarn'] is not supported"),
        ({"tie_word_embeddings": 3}, "tie_word_embeddings = 3; true or false is needed."),
        ({"layer_types": 3}, "layer_types = 3; a list of 24 is needed, each full_attention or sliding_attention."),
        ({"architectures": 3}, "architectures names 3;"),
        ({"use_sliding_window": 1}, "use_sliding_window = 1; true or false is needed."),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' would change the mathematics"),
    ],
)
def test_a_field_that_no_model_can_be_made_of_is_named(tmp_path, changes, problem):
    (tmp_path / "config.json").write_text(json.dumps(QWEN2_5_0_5B | changes))
    with pytest.raises(ConfigurationError) as raised:
        read_config(tmp_path)
    assert any(problem in text for text in raised.value.problems)


def test_a_missing_field_is_named(tmp_path):
    fields = {name: value for name, value in LLAMA_3_8B.items() if name != "hidden_size"}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ConfigurationError, match="hidden_size"):
        read_config(tmp_path)


def test_a_file_that_is_not_json_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"config\.json is no JSON"):
        read_config(tmp_path)


def test_a_family_is_what_a_role_names_it_and_else_what_config_json_says(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_8B | {"model_type": "another"}))
    config = read_config(tmp_path, "llama", "actor.family")
    assert (config.family, config.blocks) == ("llama", 32)
    with pytest.raises(ConfigurationError, match=r"model_type 'another' is not supported.* Name .* in actor.family"):
        read_config(tmp_path, None, "actor.family")
    with pytest.raises(
        ConfigurationError,
        match=r"actor.family = lama must be one of gemma, gemma2, .*, llama, .*, qwen3_moe, or",
    ):
        read_config(tmp_path, "lama", "actor.family")

"""Parameter names, shapes and counts, against published numbers and transformers."""

import json

import pytest

from hpcrl.errors import ConfigurationError
from hpcrl.placement.shapes import parameter_count, parameters, read_shape, shape_of

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


@pytest.mark.parametrize(
    ("fields", "count"), [(QWEN2_5_0_5B, 494_032_768), (QWEN2_5_7B, 7_615_616_512), (LLAMA_3_8B, 8_030_261_248)]
)
def test_counts_are_the_published_ones(fields, count):
    assert parameter_count(shape_of(fields)) == count


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("tied", [True, False])
def test_names_and_shapes_equal_those_of_transformers(family, tied):
    transformers = pytest.importorskip("transformers")
    fields = {
        "model_type": family,
        "vocab_size": 40,
        "hidden_size": 24,
        "intermediate_size": 36,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": tied,
    }
    config = transformers.AutoConfig.for_model(**fields)
    model = transformers.AutoModelForCausalLM.from_config(config)
    expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert parameters(shape_of(fields)) == expected


def test_a_value_head_stands_in_the_place_of_the_vocabularys():
    untied = shape_of(LLAMA_3_8B)
    names = parameters(untied, "value").keys()
    assert parameters(untied).keys() - names == {"lm_head.weight"}
    assert names - parameters(untied).keys() == {"score.weight", "score.bias"}
    assert parameter_count(untied) - parameter_count(untied, "value") == 128256 * 4096 - 4096 - 1


def test_an_unknown_family_is_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN2_5_0_5B | {"model_type": "rwkv"}))
    with pytest.raises(ConfigurationError, match="model_type 'rwkv' is not supported; take one of qwen2, llama"):
        read_shape(tmp_path)


def test_a_missing_field_is_named(tmp_path):
    fields = {name: value for name, value in LLAMA_3_8B.items() if name != "hidden_size"}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ConfigurationError, match="hidden_size"):
        read_shape(tmp_path)


def test_a_file_that_is_not_json_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"config\.json is not JSON"):
        read_shape(tmp_path)

"""The config.json of published checkpoints, field by field, as their folders have them."""

import pytest

from hpcrl.families.config import RotaryConfig
from hpcrl.families.reader import config_from_json

QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 896,
    "initializer_range": 0.02,
    "intermediate_size": 4864,
    "max_position_embeddings": 131072,
    "max_window_layers": 24,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.1",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
LLAMA_2 = {
    "_name_or_path": "meta-llama/Llama-2-7b-hf",
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.31.0.dev0",
    "use_cache": True,
    "vocab_size": 32000,
}
ROPE_3_1 = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
LLAMA_3_1 = LLAMA_2 | {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_key_value_heads": 8,
    "rope_scaling": ROPE_3_1,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3",
    "vocab_size": 128256,
}
PUBLISHED = {
    "Qwen2-0.5B": (QWEN2, (896, 64, 151643, RotaryConfig(1e6))),
    "Qwen2.5-0.5B": (
        QWEN2 | {"max_position_embeddings": 32768, "sliding_window": 32768, "use_mrope": False},
        (896, 64, 151643, RotaryConfig(1e6)),
    ),
    "Qwen2.5-0.5B-Instruct": (
        QWEN2
        | {
            "eos_token_id": 151645,
            "max_position_embeddings": 32768,
            "max_window_layers": 21,
            "sliding_window": 32768,
            "transformers_version": "4.43.1",
        },
        (896, 64, 151645, RotaryConfig(1e6)),
    ),
    "DeepSeek-R1-Distill-Qwen-1.5B": (
        QWEN2
        | {
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "max_window_layers": 21,
            "num_attention_heads": 12,
            "num_hidden_layers": 28,
            "rope_theta": 10000,
            "sliding_window": 4096,
            "tie_word_embeddings": False,
            "transformers_version": "4.44.0",
            "use_mrope": False,
        },
        (1536, 128, 151643, RotaryConfig(10000)),
    ),
    "Llama-2-7b": (LLAMA_2, (4096, 128, 2, RotaryConfig(10000))),
    "Llama-3.1-8B-Instruct": (LLAMA_3_1, (4096, 128, 128001, RotaryConfig(5e5, "llama3", 8.0, 1.0, 4.0, 8192))),
    "Llama-3.2-1B": (
        LLAMA_3_1
        | {
            "eos_token_id": 128001,
            "head_dim": 64,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "rope_scaling": ROPE_3_1 | {"factor": 32.0},
            "tie_word_embeddings": True,
            "transformers_version": "4.45.0.dev0",
        },
        (2048, 64, 128001, RotaryConfig(5e5, "llama3", 32.0, 1.0, 4.0, 8192)),
    ),
}


@pytest.mark.parametrize(("fields", "expected"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_configurations_are_read(fields, expected):
    config = config_from_json(fields, "config.json")
    assert (config.hidden_size, config.head_dim, config.eos_token_ids[0], config.rotary) == expected
    assert config.blocks == fields["num_hidden_layers"]
    assert config.tied == fields["tie_word_embeddings"]
    assert config.qkv_bias == (fields["model_type"] == "qwen2")

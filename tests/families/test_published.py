"""The config.json of published checkpoints, field by field, as their folders have them."""

import pytest

from hpcrl.families.config import Experts, RotaryConfig
from hpcrl.families.reader import config_from_json, parameter_count
from hpcrl.families.words import in_words

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
DISTILGPT2 = {
    "_num_labels": 1,
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "id2label": {"0": "LABEL_0"},
    "initializer_range": 0.02,
    "label2id": {"LABEL_0": 0},
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 6,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
MISTRAL_V3 = {
    "architectures": ["MistralForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.42.0.dev0",
    "use_cache": True,
    "vocab_size": 32768,
}
MISTRAL_V1 = MISTRAL_V3 | {
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "transformers_version": "4.34.0.dev0",
    "vocab_size": 32000,
}
del MISTRAL_V1["attention_dropout"]
MIXTRAL = MISTRAL_V3 | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.02,
    "transformers_version": "4.36.0.dev0",
    "vocab_size": 32000,
}
QWEN3_30B_A3B = QWEN3_8B | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "decoder_sparse_step": 1,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
}
GEMMA_2B = {
    "architectures": ["GemmaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "head_dim": 256,
    "hidden_act": "gelu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 16384,
    "max_position_embeddings": 8192,
    "model_type": "gemma",
    "num_attention_heads": 8,
    "num_hidden_layers": 18,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.38.0.dev0",
    "use_cache": True,
    "vocab_size": 256000,
}
GEMMA_2_2B = {
    "architectures": ["Gemma2ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": 50.0,
    "bos_token_id": 2,
    "cache_implementation": "hybrid",
    "eos_token_id": 1,
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304,
    "initializer_range": 0.02,
    "intermediate_size": 9216,
    "max_position_embeddings": 8192,
    "model_type": "gemma2",
    "num_attention_heads": 8,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "torch_dtype": "float32",
    "transformers_version": "4.42.4",
    "use_cache": True,
    "vocab_size": 256000,
}
GEMMA_3_1B = {
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": None,
    "bos_token_id": 2,
    "cache_implementation": "hybrid",
    "eos_token_id": [1, 106],
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "initializer_range": 0.02,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.50.0.dev0",
    "use_cache": True,
    "vocab_size": 262144,
}
PUBLISHED = {
    "Mistral-7B-v0.1": (MISTRAL_V1, (4096, 128, 2, RotaryConfig(1e4))),
    "Mixtral-8x7B-v0.1": (MIXTRAL, (4096, 128, 2, RotaryConfig(1e6))),
    "Qwen3-30B-A3B": (QWEN3_30B_A3B, (2048, 128, 151645, RotaryConfig(1e6))),
    "gemma-2b": (GEMMA_2B, (2048, 256, 1, RotaryConfig(1e4))),
    "gemma-2-2b": (GEMMA_2_2B, (2304, 256, 1, RotaryConfig(1e4))),
    "gemma-3-1b-it": (GEMMA_3_1B, (1152, 256, 1, RotaryConfig(1e6))),
    "Mistral-7B-v0.3": (MISTRAL_V3, (4096, 128, 2, RotaryConfig(1e6))),
    "Qwen3-8B": (QWEN3_8B, (4096, 128, 151645, RotaryConfig(1e6))),
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


TIED = "its embedding is its output matrix"
LINES = {
    "Mistral-7B-v0.1": (7_241_732_096, ["32,768 tokens", "all blocks see the last 4,096 tokens only"]),
    "Mistral-7B-v0.3": (7_248_023_552, ["32,768 tokens"]),
    "Mixtral-8x7B-v0.1": (46_702_792_704, ["32,768 tokens", "blocks have 8 experts, 2 a token"]),
    "Qwen3-30B-A3B": (30_532_122_624, ["40,960 tokens", "blocks have 128 experts, 8 a token"]),
    "Qwen3-8B": (8_190_735_360, ["40,960 tokens"]),
    "Qwen2-0.5B": (494_032_768, ["131,072 tokens", TIED]),
    "DeepSeek-R1-Distill-Qwen-1.5B": (1_777_088_000, ["131,072 tokens"]),
    "gemma-2b": (2_506_172_416, ["8,192 tokens", TIED]),
    "gemma-2-2b": (
        2_614_341_888,
        [
            "8,192 tokens",
            "13 of 26 blocks see the last 4,096 tokens only",
            "attention's scores are softcapped at 50",
            "its logits are softcapped at 30",
            TIED,
        ],
    ),
    "gemma-3-1b-it": (999_885_952, ["32,768 tokens", "22 of 26 blocks see the last 512 tokens only", TIED]),
    "Llama-2-7b": (6_738_415_616, ["4,096 tokens"]),
    "Llama-3.1-8B-Instruct": (8_030_261_248, ["131,072 tokens", "its rope is scaled (llama3, factor 8)"]),
    "Llama-3.2-1B": (1_235_814_400, ["131,072 tokens", "its rope is scaled (llama3, factor 32)", TIED]),
}
"""How many parameters each has, and what the plan says after their number."""


@pytest.mark.parametrize(("fields", "expected"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_configurations_are_read(fields, expected):
    config = config_from_json(fields, "config.json")
    assert (config.hidden_size, config.head_dim, config.eos_token_ids[0], config.rotary) == expected
    assert config.blocks == fields["num_hidden_layers"]
    assert config.tied == fields.get("tie_word_embeddings", True)
    assert config.qkv_bias == (fields["model_type"] == "qwen2")
    assert config.head_norms == (fields["model_type"] in ("qwen3", "qwen3_moe", "gemma3_text"))


@pytest.mark.parametrize("name", LINES)
def test_a_plan_says_how_large_a_published_model_is_and_what_is_unusual(name):
    fields, (count, said) = PUBLISHED[name][0], LINES[name]
    config = config_from_json(fields, "config.json")
    assert parameter_count(config) == count
    size = f"{count / 1e9:.2f} billion" if count >= 1e9 else f"{count / 1e6:.2f} million"
    line = f"{fields['model_type']}, {size} parameters, texts of up to {'; '.join(said)}"
    assert in_words(config) == line


def test_published_models_of_a_kind_of_their_own_are_what_their_papers_say():
    gemma_2b, gemma_3 = (config_from_json(fields, "config.json") for fields in (GEMMA_2B, GEMMA_3_1B))
    assert (gemma_2b.activation, gemma_2b.norm, gemma_2b.embedding_scaled) == ("geglu_tanh", "rms_plus_one", True)
    assert [block for block in range(26) if not gemma_3.windows[block]] == [5, 11, 17, 23]
    assert gemma_3.window_rotary == RotaryConfig(1e4)
    assert gemma_3.post_norms
    gemma_2 = config_from_json(GEMMA_2_2B, "config.json")
    assert (gemma_2.windows, gemma_2.post_norms, gemma_2.query_factor) == ((4096, 0) * 13, True, 1.0)
    assert config_from_json(MISTRAL_V1, "config.json").windows == (4096,) * 32
    assert config_from_json(MIXTRAL, "config.json").experts == Experts(8, 2, 14336)
    assert config_from_json(QWEN3_30B_A3B, "config.json").experts == Experts(128, 8, 768)


def test_distilgpt2_is_read():
    config = config_from_json(DISTILGPT2, "config.json")
    assert (config.hidden_size, config.intermediate_size, config.heads, config.head_dim) == (768, 3072, 12, 64)
    assert (config.blocks, config.max_positions, config.eos_token_ids) == (6, 1024, (50256,))
    assert (config.positions, config.norm, config.activation, config.tied) == ("learned", "layer", "gelu_tanh", True)
    assert config.qkv_bias
    assert config.output_bias
    assert config.mlp_bias

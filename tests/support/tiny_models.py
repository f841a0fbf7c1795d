"""Tiny random models: ours, and those of transformers as the oracle of ours (imported when called)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hpcrl.engines.flat import FlatTransformer
from hpcrl.families import gemma2, gemma3_text
from hpcrl.families.config import DecoderConfig, Experts, RotaryConfig
from hpcrl.models.init import random_init
from hpcrl.models.transformer import Transformer
from hpcrl.placement.shards import Cut, held

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}

GPT2_SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "n_embd": 32,
    "n_inner": 48,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 128,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
FAMILIES: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "qwen2": ("Qwen2", {}, SIZES),
    "llama": ("Llama", {}, SIZES),
    "mistral": ("Mistral", {}, SIZES),
    "qwen3": ("Qwen3", {}, SIZES | {"head_dim": 16}),
    "gemma": ("Gemma", {}, SIZES | {"head_dim": 16}),
    "gemma2": (
        "Gemma2",
        {},
        SIZES
        | {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 8}
        | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3_text": (
        "Gemma3",
        {"ForSequenceClassification": "TextForSequenceClassification"},
        SIZES | {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 8, "sliding_window_pattern": 3},
    ),
    "gpt2": ("GPT2", {"ForCausalLM": "LMHeadModel"}, GPT2_SIZES),
    "mixtral": ("Mixtral", {}, SIZES | {"num_local_experts": 4}),
    "qwen3_moe": (
        "Qwen3Moe",
        {},
        SIZES
        | {"head_dim": 16, "moe_intermediate_size": 16, "num_experts": 6, "num_experts_per_tok": 3}
        | {"mlp_only_layers": [1], "norm_topk_prob": True},
    ),
}
"""What the names of its classes begin with, their ends that are of its own, and its sizes."""

CONFIGURATIONS = {"gemma3_text": "Gemma3TextConfig"}
"""Those that are not named as the models are."""

YARN_ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def tiny_config(**changes: Any) -> DecoderConfig:
    """A qwen2 of the same sizes."""
    fields: dict[str, Any] = {
        "family": "qwen2",
        "vocabulary_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "blocks": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "max_positions": 128,
        "qkv_bias": True,
        "initializer_range": 0.2,
    }
    return DecoderConfig(**(fields | changes))


def gpt2_config(**changes: Any) -> DecoderConfig:
    """A gpt2 of the same sizes."""
    own = {"qkv_bias": True, "output_bias": True, "mlp_bias": True, "norm": "layer", "positions": "learned"}
    whole = {"family": "gpt2", "kv_heads": 4, "activation": "gelu_tanh", "tied": True}
    return tiny_config(**(own | whole | changes))


def qwen3_config(**changes: Any) -> DecoderConfig:
    """A qwen3 of the same sizes."""
    return tiny_config(**({"family": "qwen3", "qkv_bias": False, "head_norms": True} | changes))


def gemma3_config(**changes: Any) -> DecoderConfig:
    """A gemma3 of the same sizes: in every other block a token sees 6."""
    made = tiny_config(
        **(
            {"family": "gemma3_text", "qkv_bias": False, **gemma3_text.CHOICES, "tied": True, "query_scalar": 5.0}
            | changes
        )
    )
    windows = tuple(6 * (block % 2 == 0) for block in range(made.blocks))
    return replace(made, windows=windows, window_rotary=RotaryConfig(100.0))


def gemma2_config(**changes: Any) -> DecoderConfig:
    """A gemma2 of the same sizes: in every other block a token sees 6; softcaps that are felt."""
    own = {"family": "gemma2", "qkv_bias": False, **gemma2.CHOICES, "tied": True, "query_scalar": 5.0}
    made = tiny_config(**(own | {"attention_softcap": 2.0, "logit_softcap": 3.0} | changes))
    return replace(made, windows=tuple(6 * (block % 2 == 0) for block in range(made.blocks)))


def mixtral_config(**changes: Any) -> DecoderConfig:
    """A mixtral of the same sizes."""
    inner = changes.get("intermediate_size", 48)
    return tiny_config(**({"family": "mixtral", "qkv_bias": False, "experts": Experts(5, 2, inner)} | changes))


def qwen3_moe_config(**changes: Any) -> DecoderConfig:
    """A qwen3_moe of the same sizes: small experts, whose weights add up to less than 1, and one block without any."""
    experts = Experts(6, 3, 16, normalized=False, dense=(2,))
    return qwen3_config(**({"family": "qwen3_moe", "experts": experts} | changes))


CONFIGS = {
    "qwen2": tiny_config,
    "qwen3": qwen3_config,
    "gpt2": gpt2_config,
    "gemma2": gemma2_config,
    "gemma3": gemma3_config,
    "mixtral": mixtral_config,
    "qwen3_moe": qwen3_moe_config,
}
"""Models that have nothing but the sizes in common."""


def odd_config(**changes: Any) -> DecoderConfig:
    """Sizes that are no multiples of a cache line."""
    return tiny_config(**({"hidden_size": 20, "head_dim": 6, "blocks": 3} | changes))


def tiny_model(config: DecoderConfig | None = None, seed: int = 3, **kwargs: Any) -> FlatTransformer:
    """Our model, or a rank's part of it, with random parameters; `kwargs` go to FlatTransformer."""
    model = FlatTransformer(config or tiny_config(), **kwargs)
    model.load(parts_of(dict(random_init(model.config, seed)), model.config, model.cut))
    return model


def parts_of(
    parameters: Mapping[str, torch.Tensor], config: DecoderConfig, cut: Cut
) -> Iterator[tuple[str, torch.Tensor]]:
    """What a rank holds of whole parameters."""
    for part in held(config, cut):
        parameter, own = parameters[part.parameter.name], torch.zeros(part.parameter.numel)
        for span in part.spans:
            place = span.place
            shape = (place.rows, place.run)
            theirs = parameter.reshape(-1).as_strided(shape, (place.stride, 1), place.first)
            own.as_strided(shape, (span.step, 1), span.offset).copy_(theirs)
        yield part.parameter.name, own.view(part.parameter.shape)


def logits_of(model: Transformer, hidden: torch.Tensor) -> torch.Tensor:
    """Vocabulary logits of hidden states, in the model's type, or at least fp32 where they are softcapped."""
    return model.last.capped_(torch.nn.functional.linear(hidden, model.last.matrix()))


def hugging_face_model(
    family: str, head: str = "CausalLM", seed: int = 0, sizes: Mapping[str, Any] | None = None, **changes: Any
) -> Any:
    """A transformers model in evaluation mode; norms and biases are random too, so that each of them counts."""
    import transformers

    prefix, ends, usual = FAMILIES[family]
    sizes = usual if sizes is None else sizes
    config = getattr(transformers, CONFIGURATIONS.get(family, f"{prefix}Config"))(**{**sizes, **changes})
    if family == "gemma2":
        config._attn_implementation = "eager"  # transformers 5.17 would take one that caps no scores
    torch.manual_seed(seed)
    model = getattr(transformers, prefix + ends.get(f"For{head}", f"For{head}"))(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight")):
                parameter.uniform_(0.5, 1.5)
            if name.endswith("bias"):
                parameter.normal_(std=0.5)
    return model.eval()


def save_hugging_face_model(folder: Path, family: str, head: str = "CausalLM", seed: int = 0, **changes: Any) -> Any:
    """The model, after it was saved to the folder."""
    model = hugging_face_model(family, head, seed, **changes)
    model.save_pretrained(folder)
    return model

"""Tiny random models: ours, and those of transformers as the oracle of ours (imported when called)."""

from pathlib import Path
from typing import Any

import torch

from hpcrl.engines.flat import FlatTransformer
from hpcrl.families.config import DecoderConfig
from hpcrl.models.init import random_init
from hpcrl.models.transformer import Transformer

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


def odd_config(**changes: Any) -> DecoderConfig:
    """Sizes that are no multiples of a cache line."""
    return tiny_config(**({"hidden_size": 20, "head_dim": 6, "blocks": 3} | changes))


def tiny_model(config: DecoderConfig | None = None, seed: int = 3, **kwargs: Any) -> FlatTransformer:
    """Our model with random parameters; `kwargs` go to FlatTransformer."""
    model = FlatTransformer(config or tiny_config(), **kwargs)
    model.load(random_init(model.config, seed))
    return model


def logits_of(model: Transformer, hidden: torch.Tensor) -> torch.Tensor:
    """Vocabulary logits of hidden states, in the model's type."""
    return torch.nn.functional.linear(hidden, model.output.matrix())


def hugging_face_model(family: str, head: str = "CausalLM", seed: int = 0, **changes: Any) -> Any:
    """A transformers model in evaluation mode; norms and biases are random too, so that each of them counts."""
    import transformers

    prefix = {"qwen2": "Qwen2", "llama": "Llama"}[family]
    config = getattr(transformers, f"{prefix}Config")(**(SIZES | changes))
    torch.manual_seed(seed)
    model = getattr(transformers, f"{prefix}For{head}")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5)
            if name.endswith("bias"):
                parameter.normal_(std=0.5)
    return model.eval()


def save_hugging_face_model(folder: Path, family: str, head: str = "CausalLM", seed: int = 0, **changes: Any) -> Any:
    """The model, after it was saved to the folder."""
    model = hugging_face_model(family, head, seed, **changes)
    model.save_pretrained(folder)
    return model

"""What a model's config.json says of its size: the name and shape of every parameter. Loads no weights and no torch."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpcrl.errors import ConfigurationError

Shape = tuple[int, ...]
Head = Literal["vocabulary", "value"]

QKV_BIAS = {"qwen2": True, "llama": False}
"""The supported families, and whether query, key and value have a bias."""


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder-only transformer."""

    vocabulary_size: int
    hidden_size: int
    intermediate_size: int
    blocks: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    qkv_bias: bool
    tied: bool

    @property
    def kv_size(self) -> int:
        """Length of a token's keys, and of its values, in one block."""
        return self.kv_heads * self.head_dim


def read_shape(folder: Path) -> ModelShape:
    """The shape of the model in a folder. Raises ConfigurationError."""
    path = folder / "config.json"
    try:
        fields = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigurationError([f"{path} cannot be read: {error.strerror}. Name a folder that has it."]) from None
    except ValueError as error:
        raise ConfigurationError([f"{path} is not JSON: {error}. Name a folder with a whole one."]) from None
    try:
        return shape_of(fields)
    except (KeyError, ValueError) as error:
        raise ConfigurationError([f"{path}: {error}."]) from None


def shape_of(fields: Mapping[str, Any]) -> ModelShape:
    """The shape that a config.json describes. Raises KeyError for a missing field, ValueError for an unknown family."""
    family = fields.get("model_type")
    if family not in QKV_BIAS:
        raise ValueError(f"model_type {family!r} is not supported; take one of {', '.join(QKV_BIAS)}")
    heads = fields["num_attention_heads"]
    return ModelShape(
        vocabulary_size=fields["vocab_size"],
        hidden_size=fields["hidden_size"],
        intermediate_size=fields["intermediate_size"],
        blocks=fields["num_hidden_layers"],
        heads=heads,
        kv_heads=fields.get("num_key_value_heads") or heads,
        head_dim=fields.get("head_dim") or fields["hidden_size"] // heads,
        max_positions=fields["max_position_embeddings"],
        qkv_bias=QKV_BIAS[family] or bool(fields.get("attention_bias")),
        tied=bool(fields.get("tie_word_embeddings")),
    )


def parameters(model: ModelShape, head: Head = "vocabulary") -> dict[str, Shape]:
    """Every parameter by its Hugging Face name; a value head stands in the place of the vocabulary's."""
    hidden = model.hidden_size
    found: dict[str, Shape] = {"model.embed_tokens.weight": (model.vocabulary_size, hidden)}
    for block in range(model.blocks):
        found |= {f"model.layers.{block}.{name}": shape for name, shape in _block(model).items()}
    found["model.norm.weight"] = (hidden,)
    if head == "value":
        return found | {"score.weight": (1, hidden), "score.bias": (1,)}
    return found if model.tied else found | {"lm_head.weight": (model.vocabulary_size, hidden)}


def parameter_count(model: ModelShape, head: Head = "vocabulary") -> int:
    return sum(math.prod(shape) for shape in parameters(model, head).values())


def _block(model: ModelShape) -> dict[str, Shape]:
    hidden, between = model.hidden_size, model.intermediate_size
    projections = {"q": model.heads * model.head_dim, "k": model.kv_size, "v": model.kv_size}
    found: dict[str, Shape] = {}
    for name, size in projections.items():
        found[f"self_attn.{name}_proj.weight"] = (size, hidden)
        if model.qkv_bias:
            found[f"self_attn.{name}_proj.bias"] = (size,)
    return found | {
        "self_attn.o_proj.weight": (hidden, model.heads * model.head_dim),
        "mlp.gate_proj.weight": (between, hidden),
        "mlp.up_proj.weight": (between, hidden),
        "mlp.down_proj.weight": (hidden, between),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }

"""Folders of models that transformers would compute, of zeros; and what a configuration of them is refused for."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from hpcrl.errors import ConfigurationError

OPT: dict[str, Any] = {
    "model_type": "opt",
    "architectures": ["OPTForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "ffn_dim": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "layerdrop": 0.0,
}
TENSORS = {
    "model.decoder.embed_tokens.weight": (64, 32),
    "model.decoder.embed_positions.weight": (130, 32),
    **{f"model.decoder.layers.{block}.fc1.weight": (48, 32) for block in range(2)},
    **{f"model.decoder.layers.{block}.fc1.bias": (48,) for block in range(2)},
    "model.decoder.final_layer_norm.weight": (32,),
}


def write(folder: Path, fields: dict[str, Any], tensors: dict[str, tuple[int, ...]] | None = None) -> None:
    """config.json, and a file of tensors that are nothing but zeros."""
    (folder / "config.json").write_text(json.dumps(fields))
    header, end = {}, 0
    for name, shape in (TENSORS if tensors is None else tensors).items():
        size = 4
        for length in shape:
            size *= length
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


def problems(load: Any, *overrides: str) -> list[str]:
    with pytest.raises(ConfigurationError) as raised:
        load(*overrides)
    return list(raised.value.problems)

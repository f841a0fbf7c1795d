"""Qwen2 and Qwen2.5 (arXiv 2407.10671): query, key and value have biases; no sliding window."""

from typing import Any

from hpcrl.models.config import TransformerConfig
from hpcrl.models.families.decoder import pieces, read_decoder, write_decoder
from hpcrl.models.families.family import Family
from hpcrl.models.families.fields import Fields


def _read(fields: Fields) -> TransformerConfig:
    fields.require("use_sliding_window", False, False)
    fields.require("use_mrope", False, False)
    fields.take("sliding_window")
    fields.full_attention()
    return read_decoder(fields, "qwen2", "Qwen2", qkv_bias=True)


def _write(config: TransformerConfig) -> dict[str, Any]:
    return write_decoder(config, qkv_bias=True) | {"use_sliding_window": False}


QWEN2 = Family("qwen2", "Qwen2", _read, _write, pieces)

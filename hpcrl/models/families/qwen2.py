"""Qwen2 and Qwen2.5 (arXiv 2407.10671): query, key and value have biases; no sliding window."""

from typing import Any

from hpcrl.families.config import TransformerConfig
from hpcrl.models.families.decoder import pieces, write_decoder
from hpcrl.models.families.family import Family


def _write(config: TransformerConfig) -> dict[str, Any]:
    return write_decoder(config, qkv_bias=True) | {"use_sliding_window": False}


QWEN2 = Family("qwen2", _write, pieces)

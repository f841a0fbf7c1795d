"""Llama 2 and 3 (arXiv 2302.13971, 2407.21783): no biases; Llama 3.1 scales its rope."""

from typing import Any

from hpcrl.families.config import TransformerConfig
from hpcrl.models.families.decoder import pieces, write_decoder
from hpcrl.models.families.family import Family


def _write(config: TransformerConfig) -> dict[str, Any]:
    return write_decoder(config, qkv_bias=False) | {"attention_bias": False, "mlp_bias": False}


LLAMA = Family("llama", _write, pieces)

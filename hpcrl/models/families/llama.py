"""Llama 2 and 3 (arXiv 2302.13971, 2407.21783): no biases; Llama 3.1 scales its rope."""

from typing import Any

from hpcrl.models.config import TransformerConfig
from hpcrl.models.families.decoder import pieces, read_decoder, write_decoder
from hpcrl.models.families.family import Family
from hpcrl.models.families.fields import Fields


def _read(fields: Fields) -> TransformerConfig:
    fields.require("attention_bias", False, False)
    fields.require("mlp_bias", False, False)
    return read_decoder(fields, "llama", "Llama", qkv_bias=False)


def _write(config: TransformerConfig) -> dict[str, Any]:
    return write_decoder(config, qkv_bias=False) | {"attention_bias": False, "mlp_bias": False}


LLAMA = Family("llama", "Llama", _read, _write, pieces)

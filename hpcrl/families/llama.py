"""Llama 2 and 3 (arXiv 2302.13971, 2407.21783): no biases; Llama 3.1 scales its rope."""

from typing import Any

from hpcrl.families.config import DecoderConfig
from hpcrl.families.decoder import parameters, pieces, read_decoder, write_decoder
from hpcrl.families.family import Family
from hpcrl.families.fields import Fields


def _read(fields: Fields) -> DecoderConfig:
    fields.require("attention_bias", False, False)
    fields.require("mlp_bias", False, False)
    return read_decoder(fields, qkv_bias=False)


def _write(config: DecoderConfig) -> dict[str, Any]:
    return write_decoder(config, "llama", qkv_bias=False) | {"attention_bias": False, "mlp_bias": False}


FAMILY = Family(architecture="Llama", read=_read, write=_write, parameters=parameters, pieces=pieces)

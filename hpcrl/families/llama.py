"""Llama 2 and 3 (arXiv 2302.13971, 2407.21783): Llama 3.1 scales its rope; those derived from it may have biases."""

from typing import Any

from hpcrl.families.config import DecoderConfig
from hpcrl.families.decoder import parameters, pieces, read_decoder, write_decoder
from hpcrl.families.family import Family
from hpcrl.families.fields import Fields


def _read(fields: Fields) -> DecoderConfig:
    attention, mlp = fields.flag("attention_bias"), fields.flag("mlp_bias")
    return read_decoder(fields, qkv_bias=attention, output_bias=attention, mlp_bias=mlp)


def _write(config: DecoderConfig) -> dict[str, Any]:
    attention, mlp = config.output_bias, config.mlp_bias
    written = write_decoder(config, "llama", qkv_bias=attention, output_bias=attention, mlp_bias=mlp)
    return written | {"attention_bias": attention, "mlp_bias": mlp}


FAMILY = Family(architecture="Llama", read=_read, write=_write, parameters=parameters, pieces=pieces)

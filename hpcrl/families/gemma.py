"""Gemma (arXiv 2403.08295): scaled embedding, norms by one plus their weight, GeGLU, the embedding as output matrix."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hpcrl.families.config import DecoderConfig
from hpcrl.families.decoder import parameters, pieces, read_decoder, write_decoder
from hpcrl.families.family import Family
from hpcrl.families.fields import GELU, Fields

CHOICES: Mapping[str, Any] = MappingProxyType(
    {"norm": "rms_plus_one", "embedding_scaled": True, "activation": "geglu_tanh"}
)


def _read(fields: Fields) -> DecoderConfig:
    fields.gelu()
    fields.require("use_bidirectional_attention", False, False)
    bias = fields.flag("attention_bias")
    return read_decoder(fields, head_dim=256, tied=True, qkv_bias=bias, output_bias=bias, **CHOICES)


def _write(config: DecoderConfig) -> dict[str, Any]:
    bias = config.output_bias
    written = write_decoder(config, "gemma", qkv_bias=bias, output_bias=bias, **CHOICES)
    return written | {"attention_bias": bias, "hidden_act": GELU}


FAMILY = Family(architecture="Gemma", read=_read, write=_write, parameters=parameters, pieces=pieces)

"""Qwen3 without experts (arXiv 2505.09388): heads' queries and keys are normalised; upper blocks may have a window."""

from typing import Any

from hpcrl.families.config import DecoderConfig
from hpcrl.families.decoder import (
    parameters,
    pieces,
    read_decoder,
    upper_window_fields,
    with_upper_windows,
    write_decoder,
)
from hpcrl.families.family import Family
from hpcrl.families.fields import Fields


def _read(fields: Fields) -> DecoderConfig:
    bias = fields.flag("attention_bias")
    config = read_decoder(fields, head_dim=128, head_norms=True, qkv_bias=bias, output_bias=bias)
    return with_upper_windows(fields, config)


def _write(config: DecoderConfig) -> dict[str, Any]:
    bias = config.output_bias
    choices = {"head_norms": True, "qkv_bias": bias, "output_bias": bias, "windows": config.windows}
    return write_decoder(config, "qwen3", **choices) | {"attention_bias": bias, **upper_window_fields(config)}


FAMILY = Family(architecture="Qwen3", read=_read, write=_write, parameters=parameters, pieces=pieces)

"""Qwen2 and Qwen2.5 (arXiv 2407.10671): query, key and value have biases; the upper blocks may have a window."""

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
    fields.require("use_mrope", False, False)
    return with_upper_windows(fields, read_decoder(fields, qkv_bias=True))


def _write(config: DecoderConfig) -> dict[str, Any]:
    return write_decoder(config, "qwen2", qkv_bias=True, windows=config.windows) | upper_window_fields(config)


FAMILY = Family(architecture="Qwen2", read=_read, write=_write, parameters=parameters, pieces=pieces)

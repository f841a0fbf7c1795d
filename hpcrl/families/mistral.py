"""Mistral (arXiv 2310.06825): every token sees a window of the tokens before it, or all of them from 7B v0.2 on."""

from dataclasses import replace
from typing import Any

from hpcrl.families.config import DecoderConfig
from hpcrl.families.decoder import only_window, parameters, pieces, read_decoder, write_decoder
from hpcrl.families.family import Family
from hpcrl.families.fields import Fields

WINDOW = 4096
"""What transformers takes where config.json names none."""


def _read(fields: Fields) -> DecoderConfig:
    window, config = fields.nullable("sliding_window", WINDOW), read_decoder(fields)
    return replace(config, windows=fields.windows(window, [window is not None] * config.blocks))


def _write(config: DecoderConfig) -> dict[str, Any]:
    written = write_decoder(config, "mistral", windows=config.windows)
    return written | {"sliding_window": only_window(config, "mistral")}


FAMILY = Family(architecture="Mistral", read=_read, write=_write, parameters=parameters, pieces=pieces)

"""Gemma 2 (arXiv 2408.00118): attention's scores and the logits are softcapped, every other block has a window, and
what is added is normalised, too.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hpcrl.families.config import DecoderConfig
from hpcrl.families.decoder import parameters, pieces, read_decoder, write_decoder
from hpcrl.families.family import Family
from hpcrl.families.fields import GELU, Fields, whole, window_fields

CHOICES: Mapping[str, Any] = MappingProxyType(
    {"norm": "rms_plus_one", "embedding_scaled": True, "activation": "geglu_tanh", "post_norms": True}
)
WINDOW = 4096
ATTENTION_SOFTCAP, LOGIT_SOFTCAP = 50.0, 30.0
OWN = ("windows", "query_scalar", "attention_softcap", "logit_softcap")
"""In what else such models differ."""


def _read(fields: Fields) -> DecoderConfig:
    fields.gelu()
    fields.require("use_bidirectional_attention", False, False)
    bias = fields.flag("attention_bias")
    config = read_decoder(
        fields,
        head_dim=256,
        tied=True,
        query_scalar=fields.number("query_pre_attn_scalar", 256),
        attention_softcap=fields.softcap("attn_logit_softcapping", ATTENTION_SOFTCAP),
        logit_softcap=fields.softcap("final_logit_softcapping", LOGIT_SOFTCAP),
        qkv_bias=bias,
        output_bias=bias,
        **CHOICES,
    )
    window = fields.nullable("sliding_window", WINDOW)
    if (again := fields.take("sliding_window_size", window)) != window:  # some folders say it twice
        fields.refuse(f"sliding_window_size = {again!r} differs from sliding_window = {window!r}.")
    return replace(config, windows=fields.windows(window, [block % 2 == 0 for block in range(config.blocks)]))


def _write(config: DecoderConfig) -> dict[str, Any]:
    bias, own = config.output_bias, {name: getattr(config, name) for name in OWN}
    written = write_decoder(config, "gemma2", qkv_bias=bias, output_bias=bias, **own, **CHOICES)
    del written["hidden_act"]
    return written | {
        "attention_bias": bias,
        "hidden_activation": GELU,
        "query_pre_attn_scalar": whole(config.query_scalar or config.head_dim),
        "attn_logit_softcapping": config.attention_softcap,
        "final_logit_softcapping": config.logit_softcap,
        **window_fields(config.windows or (0,) * config.blocks, unused=WINDOW),
    }


FAMILY = Family(architecture="Gemma2", read=_read, write=_write, parameters=parameters, pieces=pieces)

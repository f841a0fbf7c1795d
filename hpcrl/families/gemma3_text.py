"""Gemma 3's language models (arXiv 2503.19786): five blocks with a window and a rope of their own, then one that sees
all; norms of heads and of what is added. Files that see images are of another family.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hpcrl.families.config import DecoderConfig, RotaryConfig
from hpcrl.families.decoder import parameters, pieces, read_decoder, write_decoder
from hpcrl.families.family import Family
from hpcrl.families.fields import GELU, KINDS, WINDOWED, Fields, whole, window_fields

CHOICES: Mapping[str, Any] = MappingProxyType(
    {
        "norm": "rms_plus_one",
        "embedding_scaled": True,
        "activation": "geglu_tanh",
        "head_norms": True,
        "post_norms": True,
    }
)
THETA, WINDOW_THETA = 1_000_000.0, 10_000.0
WINDOW = 4096
PATTERN = 6
"""Of so many blocks the last sees all."""


def _read(fields: Fields) -> DecoderConfig:
    fields.gelu()
    fields.require("use_bidirectional_attention", False, False)
    fields.require("attn_logit_softcapping", None, None)  # transformers' own code takes no notice of it
    bias = fields.flag("attention_bias")
    everywhere, windowed = _rotaries(fields)
    config = read_decoder(
        fields,
        head_dim=256,
        tied=True,
        rotary=everywhere,
        window_rotary=windowed,
        query_scalar=fields.number("query_pre_attn_scalar", 256),
        logit_softcap=fields.softcap("final_logit_softcapping", None),
        qkv_bias=bias,
        output_bias=bias,
        **CHOICES,
    )
    pattern = fields.size("sliding_window_pattern", fields.size("_sliding_window_pattern", PATTERN))
    usual = [(block + 1) % pattern > 0 for block in range(config.blocks)]
    return replace(config, windows=fields.windows(fields.nullable("sliding_window", WINDOW), usual))


def _rotaries(fields: Fields) -> tuple[RotaryConfig, RotaryConfig]:
    """Of blocks that see all, and of those with a window: an object for each, or (transformers 4) theirs by name."""
    theta, window_theta = fields.take("rope_theta", THETA), fields.take("rope_local_base_freq", WINDOW_THETA)
    both = dict(fields.object("rope_parameters") or {KINDS[0]: fields.object("rope_scaling")})
    everywhere, windowed = both.pop(KINDS[0], None) or {}, both.pop(WINDOWED, None) or {}
    if both or not isinstance(everywhere, dict) or not isinstance(windowed, dict):
        fields.refuse(
            f"rope_parameters has {', '.join(both) or 'no objects'}; it needs one for each of {', '.join(KINDS)}."
        )
        return RotaryConfig(), RotaryConfig()
    return fields.rotary_of(everywhere, theta), fields.rotary_of(windowed, window_theta)


def _write(config: DecoderConfig) -> dict[str, Any]:
    bias, window_rotary = config.output_bias, config.window_rotary or config.rotary
    kept = ("windows", "window_rotary", "query_scalar", "logit_softcap")
    own = {name: getattr(config, name) for name in kept}
    written = write_decoder(config, "gemma3_text", qkv_bias=bias, output_bias=bias, **own, **CHOICES)
    if window_rotary != RotaryConfig(theta=window_rotary.theta):
        raise ValueError(f"Blocks with a window of a gemma3_text model have a plain rope, not {window_rotary}.")
    del written["hidden_act"]
    return written | {
        "attention_bias": bias,
        "hidden_activation": GELU,
        "query_pre_attn_scalar": whole(config.query_scalar or config.head_dim),
        "final_logit_softcapping": config.logit_softcap,
        "rope_local_base_freq": window_rotary.theta,
        **window_fields(config.windows or (0,) * config.blocks, unused=WINDOW),
    }


FAMILY = Family(
    architecture="Gemma3",
    read=_read,
    write=_write,
    parameters=parameters,
    pieces=pieces,
    heads={
        "ForCausalLM": "vocabulary",
        "TextForTokenClassification": "value",
        "TextForSequenceClassification": "reward",
    },
)

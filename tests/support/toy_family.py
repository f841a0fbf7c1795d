"""A model family in a file of one's own: other tensor names, other fields of config.json, another fusion and cut."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hpcrl.families import decoder
from hpcrl.families.config import DecoderConfig
from hpcrl.families.family import Family, Parameter, Piece, TPBlock
from hpcrl.families.fields import Fields

FIELDS = {
    "vocabulary_size": "n_tokens",
    "hidden_size": "width",
    "intermediate_size": "inner_width",
    "blocks": "depth",
    "heads": "n_heads",
    "kv_heads": "n_kv_heads",
    "head_dim": "head_width",
    "max_positions": "n_positions",
}
NAMES = {
    "attention_norm": "norm_1.gain",
    "qkv": "attention.in.weight",
    "output": "attention.out.weight",
    "mlp_norm": "norm_2.gain",
    "gate_up": "mlp.in.weight",
    "down": "mlp.out.weight",
    "embedding": "tokens.weight",
    "final_norm": "norm.gain",
    "head_bias": "score.bias",
}
FUSED = {"qkv", "gate_up", "output", "down"}


def _read(fields: Fields) -> DecoderConfig:
    sizes: dict[str, Any] = {ours: fields.size(theirs) for ours, theirs in FIELDS.items()}
    return DecoderConfig(
        family=fields.family,
        norm_eps=1e-5,
        rotary=fields.rotary(),
        tied=fields.flag("shares_tokens"),
        head=fields.head(),
        initializer_range=fields.number("spread", 0.2),
        carried=fields.carried(),
        **sizes,
    )


def _write(config: DecoderConfig) -> dict[str, Any]:
    sizes = {theirs: getattr(config, ours) for ours, theirs in FIELDS.items()}
    spread = config.initializer_range
    return {"model_type": "toy", **config.carried, **sizes, "shares_tokens": config.tied, "spread": spread}


def _parameters(config: DecoderConfig) -> Iterator[Parameter]:
    """As in other decoders, but keys and values are whole on each tensor-parallel rank's query heads."""
    for parameter in decoder.parameters(config):
        if parameter.name.endswith("qkv"):
            yield replace(parameter, tp_blocks=(TPBlock(config.query_size), TPBlock(2 * config.kv_size)))
        else:
            yield parameter


def _pieces(config: DecoderConfig, parameter: Parameter) -> tuple[Piece, ...]:
    part = parameter.name.rsplit(".", 1)[1]
    place = f"{parameter.layer - 1}." if 1 <= parameter.layer <= config.blocks else ""
    name = NAMES.get(part, "score.weight" if config.head != "vocabulary" else "to_tokens.weight")
    if part in FUSED:
        return (Piece(place + name, parameter.shape[1], transposed=True),)
    return (Piece(place + name, parameter.shape[0]),)


FAMILY = Family(architecture="Toy", read=_read, write=_write, parameters=_parameters, pieces=_pieces)

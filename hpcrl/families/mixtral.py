"""Mixtral (arXiv 2401.04088): Mistral's blocks with experts, of which each token gets the two likeliest."""

from dataclasses import replace
from typing import Any

from hpcrl.families.config import DecoderConfig, Experts
from hpcrl.families.decoder import expert_pieces, only_window, parameters, read_decoder, with_experts, write_decoder
from hpcrl.families.family import Family, Parameter, Piece
from hpcrl.families.fields import Fields

THETA, EPS = 1e6, 1e-5
"""What transformers takes where config.json names none."""


def _read(fields: Fields) -> DecoderConfig:
    fields.require("router_jitter_noise", 0.0, 0.0)
    config = read_decoder(fields, rotary=fields.rotary(THETA))
    config = replace(config, norm_eps=fields.number("rms_norm_eps", EPS))
    count, per_token = fields.size("num_local_experts", 8), fields.size("num_experts_per_tok", 2)
    return with_experts(fields, config, Experts(count, per_token, config.intermediate_size))


def _write(config: DecoderConfig) -> dict[str, Any]:
    experts, size = config.experts, config.intermediate_size
    if experts is None or experts != Experts(experts.count, experts.per_token, size, cut=experts.cut):
        raise ValueError(f"All blocks of this mixtral model have experts of {size} neurons, normalised, not {experts}.")
    written = write_decoder(config, "mixtral", windows=config.windows, experts=experts)
    named = {"num_local_experts": experts.count, "num_experts_per_tok": experts.per_token}
    return written | named | {"sliding_window": only_window(config, "mixtral")}


def _pieces(config: DecoderConfig, parameter: Parameter) -> tuple[Piece, ...]:
    return expert_pieces(config, parameter, "block_sparse_moe", ("w1", "w3", "w2"))


FAMILY = Family(architecture="Mixtral", read=_read, write=_write, parameters=parameters, pieces=_pieces)

"""Qwen3 with experts (arXiv 2505.09388), small ones and many; some blocks may have a plain MLP."""

from typing import Any

from hpcrl.families.config import DecoderConfig, Experts
from hpcrl.families.decoder import expert_pieces, only_window, parameters, read_decoder, with_experts, write_decoder
from hpcrl.families.family import Family, Parameter, Piece
from hpcrl.families.fields import Fields


def _read(fields: Fields) -> DecoderConfig:
    bias = fields.flag("attention_bias")
    config = read_decoder(fields, head_norms=True, qkv_bias=bias, output_bias=bias)
    count = fields.size("num_experts", fields.size("num_local_experts", 128))
    per_token, inner = fields.size("num_experts_per_tok", 8), fields.size("moe_intermediate_size", 768)
    experts = Experts(count, per_token, inner, fields.flag("norm_topk_prob"), _dense(fields, config.blocks))
    return with_experts(fields, config, experts, fields.flag("use_sliding_window"))


def _dense(fields: Fields, blocks: int) -> tuple[int, ...]:
    """The layers that have a plain MLP."""
    step, listed = fields.size("decoder_sparse_step", 1), fields.take("mlp_only_layers", [])
    if not isinstance(listed, list) or any(not isinstance(block, int) for block in listed):
        fields.refuse(f"mlp_only_layers = {listed!r}; a list of blocks is needed.")
        return ()
    return tuple(layer for layer in range(1, blocks + 1) if layer - 1 in listed or layer % step)


def _write(config: DecoderConfig) -> dict[str, Any]:
    experts, bias = config.experts, config.output_bias
    if experts is None:
        raise ValueError("A qwen3_moe model has experts.")
    choices = {"head_norms": True, "qkv_bias": bias, "output_bias": bias, "windows": config.windows}
    window = only_window(config, "qwen3_moe")
    return write_decoder(config, "qwen3_moe", **choices, experts=experts) | {
        "attention_bias": bias,
        "num_experts": experts.count,
        "num_experts_per_tok": experts.per_token,
        "moe_intermediate_size": experts.inner_size,
        "norm_topk_prob": experts.normalized,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [layer - 1 for layer in experts.dense],
        "use_sliding_window": window is not None,
        "sliding_window": window,
    }


def _pieces(config: DecoderConfig, parameter: Parameter) -> tuple[Piece, ...]:
    return expert_pieces(config, parameter, "mlp", ("gate_proj", "up_proj", "down_proj"))


FAMILY = Family(architecture="Qwen3Moe", read=_read, write=_write, parameters=parameters, pieces=_pieces)

"""What the checkpoints that follow Llama's have in common: fields of config.json, names of tensors."""

from typing import Any

from hpcrl.families.config import TransformerConfig
from hpcrl.families.fields import rotary_fields
from hpcrl.models.families.family import Piece
from hpcrl.models.layout import Parameter


def write_decoder(config: TransformerConfig, *, qkv_bias: bool) -> dict[str, Any]:
    """The fields of a config.json. Raises ValueError where the family does not have such biases."""
    if config.qkv_bias != qkv_bias:
        raise ValueError(f"A {config.family} model has qkv_bias = {qkv_bias}, not {config.qkv_bias}.")
    return {
        "vocab_size": config.vocabulary_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.blocks,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_eps,
        "initializer_range": config.initializer_range,
        "tie_word_embeddings": config.tied,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        **rotary_fields(config.rotary),
    }


def pieces(config: TransformerConfig, entry: Parameter) -> tuple[Piece, ...]:
    """The tensors that make up one parameter, in the order in which they are fused."""
    part = entry.name.rsplit(".", 1)[1]
    block = f"model.layers.{entry.layer - 1}."
    query, key, inner = config.heads * config.head_dim, config.kv_heads * config.head_dim, config.intermediate_size
    match part:
        case "qkv" | "qkv_bias":
            weight = part == "qkv"
            suffix = "weight" if weight else "bias"
            return (
                Piece(f"{block}self_attn.q_proj.{suffix}", query, paired=True, transposed=weight),
                Piece(f"{block}self_attn.k_proj.{suffix}", key, paired=True, transposed=weight),
                Piece(f"{block}self_attn.v_proj.{suffix}", key, transposed=weight),
            )
        case "gate_up":
            return (
                Piece(f"{block}mlp.gate_proj.weight", inner, transposed=True),
                Piece(f"{block}mlp.up_proj.weight", inner, transposed=True),
            )
        case "output":
            return (Piece(f"{block}self_attn.o_proj.weight", config.hidden_size, transposed=True),)
        case "down":
            return (Piece(f"{block}mlp.down_proj.weight", config.hidden_size, transposed=True),)
        case "attention_norm":
            return (Piece(f"{block}input_layernorm.weight", config.hidden_size),)
        case "mlp_norm":
            return (Piece(f"{block}post_attention_layernorm.weight", config.hidden_size),)
        case "embedding":
            return (Piece("model.embed_tokens.weight", config.vocabulary_size),)
        case "final_norm":
            return (Piece("model.norm.weight", config.hidden_size),)
        case "head_bias":
            return (Piece("score.bias", 1),)
        case _:
            return (Piece("lm_head.weight" if config.head == "vocabulary" else "score.weight", config.head_outputs),)

"""What the checkpoints that follow Llama's have in common: fields of config.json, parameters, names of tensors.

Our matrices are stored [in, out] (a small batch multiplies faster so); a rotary head's rows are stored as interleaved
pairs (`hpcrl.models.rotary`).
"""

from collections.abc import Iterator
from typing import Any

from hpcrl.families.config import DecoderConfig
from hpcrl.families.family import Parameter, Piece
from hpcrl.families.fields import Fields, rotary_fields


def read_decoder(fields: Fields, *, qkv_bias: bool) -> DecoderConfig:
    """The model of a config.json of which the family has taken what only it has."""
    fields.require("is_encoder_decoder", False, False)
    fields.require("classifier_dropout", 0.0, 0.0)
    fields.require("attention_dropout", 0.0, 0.0)
    fields.require("hidden_act", "silu", "silu")
    heads, hidden = fields.size("num_attention_heads"), fields.size("hidden_size")
    config = DecoderConfig(
        family=fields.family,
        vocabulary_size=fields.size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.size("intermediate_size"),
        blocks=fields.size("num_hidden_layers"),
        heads=heads,
        kv_heads=fields.size("num_key_value_heads", heads),
        head_dim=fields.size("head_dim", max(1, hidden // heads)),
        max_positions=fields.size("max_position_embeddings"),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rotary=fields.rotary(),
        qkv_bias=qkv_bias,
        tied=fields.flag("tie_word_embeddings", False),
        head=fields.head(),
        initializer_range=fields.number("initializer_range", 0.02),
        carried=fields.carried(),
    )
    if config.heads % config.kv_heads:
        fields.refuse(f"num_attention_heads = {heads} is no multiple of num_key_value_heads = {config.kv_heads}.")
    if config.head_dim % 2:
        fields.refuse(f"head_dim = {config.head_dim} is odd; rotary position embedding turns pairs.")
    return config


def write_decoder(config: DecoderConfig, model_type: str, *, qkv_bias: bool) -> dict[str, Any]:
    """The fields of a config.json. Raises ValueError where the family does not have such biases."""
    if config.qkv_bias != qkv_bias:
        raise ValueError(f"A {model_type} model has qkv_bias = {qkv_bias}, not {config.qkv_bias}.")
    return {
        "model_type": model_type,
        **config.carried,
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


def parameters(config: DecoderConfig) -> Iterator[Parameter]:
    """All parameters, layer by layer. Norms and biases do not decay."""
    rows = config.vocabulary_size
    yield Parameter("layers.0.embedding", 0, (rows, config.hidden_size), 0, (rows,))
    for layer in range(1, config.blocks + 1):
        yield from _block(config, layer)
    yield from _head(config, config.blocks + 1)


def _block(config: DecoderConfig, layer: int) -> Iterator[Parameter]:
    hidden, inner, query = config.hidden_size, config.intermediate_size, config.query_size
    fused = (query, config.kv_size, config.kv_size)
    prefix = f"layers.{layer}."
    yield Parameter(prefix + "attention_norm", layer, (hidden,), decays=False)
    yield Parameter(prefix + "qkv", layer, (hidden, sum(fused)), 1, fused)
    if config.qkv_bias:
        yield Parameter(prefix + "qkv_bias", layer, (sum(fused),), 0, fused, decays=False)
    yield Parameter(prefix + "output", layer, (query, hidden), 0, (query,))
    yield Parameter(prefix + "mlp_norm", layer, (hidden,), decays=False)
    yield Parameter(prefix + "gate_up", layer, (hidden, 2 * inner), 1, (inner, inner))
    yield Parameter(prefix + "down", layer, (inner, hidden), 0, (inner,))


def _head(config: DecoderConfig, layer: int) -> Iterator[Parameter]:
    prefix, hidden, rows = f"layers.{layer}.", config.hidden_size, config.vocabulary_size
    yield Parameter(prefix + "final_norm", layer, (hidden,), decays=False)
    if config.head != "vocabulary":
        yield Parameter(prefix + "head", layer, (1, hidden))
    elif not config.tied:
        yield Parameter(prefix + "head", layer, (rows, hidden), 0, (rows,))
    if config.head == "value":
        yield Parameter(prefix + "head_bias", layer, (1,), decays=False)


def pieces(config: DecoderConfig, parameter: Parameter) -> tuple[Piece, ...]:
    """The tensors that make up one parameter, in the order in which they are fused."""
    part = parameter.name.rsplit(".", 1)[1]
    block = f"model.layers.{parameter.layer - 1}."
    query, key, inner = config.query_size, config.kv_size, config.intermediate_size
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

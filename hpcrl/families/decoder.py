"""What the checkpoints that follow Llama's have in common: fields of config.json, parameters, names of tensors.

Our matrices are stored [in, out] (a small batch multiplies faster so); a rotary head's rows are stored as interleaved
pairs (`hpcrl.models.rotary`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hpcrl.families.config import DecoderConfig, Experts, RotaryConfig
from hpcrl.families.family import Parameter, Piece, TPBlock
from hpcrl.families.fields import Fields, rotary_fields, window_fields

CHOICES: Mapping[str, Any] = MappingProxyType(
    {
        "norm": "rms",
        "post_norms": False,
        "positions": "rotary",
        "head_norms": False,
        "query_scalar": None,
        "windows": (),
        "attention_softcap": None,
        "logit_softcap": None,
        "window_rotary": None,
        "embedding_scaled": False,
        "activation": "swiglu",
        "experts": None,
        "qkv_bias": False,
        "output_bias": False,
        "mlp_bias": False,
    }
)
"""How these families build a model, unless one says otherwise."""


def read_decoder(
    fields: Fields, head_dim: int | None = None, tied: bool = False, rotary: RotaryConfig | None = None, **choices: Any
) -> DecoderConfig:
    """The model of a config.json of which the family has taken what only it has.

    `choices` are those of its own, by their names in DecoderConfig; `head_dim` (None: hidden_size over heads) and
    `tied` are those of a file that names none, `rotary` what the family itself has read.
    """
    fields.require("is_encoder_decoder", False, False)
    fields.require("classifier_dropout", 0.0, 0.0)
    fields.require("attention_dropout", 0.0, 0.0)
    if "activation" not in choices:
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
        head_dim=fields.size("head_dim", head_dim or max(1, hidden // heads)),
        max_positions=fields.size("max_position_embeddings"),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rotary=fields.rotary() if rotary is None else rotary,
        tied=fields.flag("tie_word_embeddings", tied),
        head=fields.head(),
        initializer_range=fields.number("initializer_range", 0.02),
        carried=fields.carried(),
        **choices,
    )
    if config.heads % config.kv_heads:
        fields.refuse(f"num_attention_heads = {heads} is no multiple of num_key_value_heads = {config.kv_heads}.")
    if config.head_dim % 2:
        fields.refuse(f"head_dim = {config.head_dim} is odd; rotary position embedding turns pairs.")
    return config


def write_decoder(config: DecoderConfig, model_type: str, **choices: Any) -> dict[str, Any]:
    """The fields of a config.json. Raises ValueError where the model is built otherwise than by these `choices`."""
    check_choices(config, model_type, {**CHOICES, **choices})
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


def with_upper_windows(fields: Fields, config: DecoderConfig) -> DecoderConfig:
    """With a window in the blocks that `layer_types` names, or else from `max_window_layers` on, if one is in use."""
    named = fields.take("sliding_window", 4096)
    window = named if fields.flag("use_sliding_window") else None
    first = fields.size("max_window_layers", 28) if window is not None else config.blocks
    return replace(config, windows=fields.windows(window, [block >= first for block in range(config.blocks)]))


def upper_window_fields(config: DecoderConfig) -> dict[str, Any]:
    """What `with_upper_windows` reads."""
    return {"use_sliding_window": any(config.windows), **(window_fields(config.windows) if config.windows else {})}


def with_experts(fields: Fields, config: DecoderConfig, experts: Experts, windowed: bool = True) -> DecoderConfig:
    """With experts, and, where a window is in use, with it in all blocks."""
    named = fields.take("sliding_window")
    window = named if windowed else None
    if experts.per_token > experts.count:
        fields.refuse(f"num_experts_per_tok = {experts.per_token}, of {experts.count} experts.")
    windows = fields.windows(window, [window is not None] * config.blocks)
    return replace(config, windows=windows, experts=experts)


def only_window(config: DecoderConfig, model_type: str) -> int | None:
    """That of all blocks; None where none has one. Raises ValueError where some have."""
    if 0 in config.windows:
        raise ValueError(f"All blocks of a {model_type} model have a window or none, not windows = {config.windows}.")
    size: int | None = window_fields(config.windows)["sliding_window"]
    return size


def check_choices(config: DecoderConfig, model_type: str, choices: Mapping[str, Any]) -> None:
    """Raises ValueError where a model is not built as all of its family are."""
    for name, choice in choices.items():
        if (own := getattr(config, name)) != choice:
            raise ValueError(f"A {model_type} model has {name} = {choice}, not {own}.")


def parameters(config: DecoderConfig) -> Iterator[Parameter]:
    """All parameters, layer by layer. Norms and biases do not decay."""
    rows = config.vocabulary_size
    yield Parameter("layers.0.embedding", 0, (rows, config.hidden_size), 0, (TPBlock(rows, spare="padded"),))
    if config.positions == "learned":
        yield Parameter("layers.0.positions", 0, (config.max_positions, config.hidden_size))
    for layer in range(1, config.blocks + 1):
        yield from _block(config, layer)
    yield from _head(config, config.blocks + 1)


def _block(config: DecoderConfig, layer: int) -> Iterator[Parameter]:
    hidden, query = config.hidden_size, TPBlock(config.heads, config.head_dim)
    keys = TPBlock(config.kv_heads, config.head_dim, "shared")
    fused, width = (query, keys, keys), query.numel + 2 * keys.numel
    prefix = f"layers.{layer}."
    yield from _norm(config, prefix + "attention_norm", layer)
    yield Parameter(prefix + "qkv", layer, (hidden, width), 1, fused)
    if config.qkv_bias:
        yield Parameter(prefix + "qkv_bias", layer, (width,), 0, fused, decays=False)
    if config.head_norms:
        yield Parameter(prefix + "query_norm", layer, (config.head_dim,), decays=False)
        yield Parameter(prefix + "key_norm", layer, (config.head_dim,), decays=False)
    yield Parameter(prefix + "output", layer, (query.numel, hidden), 0, (query,))
    if config.output_bias:
        yield Parameter(prefix + "output_bias", layer, (hidden,), decays=False)
    if config.post_norms:
        yield from _norm(config, prefix + "attention_post_norm", layer)
    yield from _norm(config, prefix + "mlp_norm", layer)
    if (experts := config.experts_of(layer)) is not None:
        yield from _experts(experts, hidden, layer)
    else:
        yield from _mlp(config, layer)
    if config.post_norms:
        yield from _norm(config, prefix + "mlp_post_norm", layer)


def _experts(experts: Experts, hidden: int, layer: int) -> Iterator[Parameter]:
    """The matrices of all experts in one parameter."""
    prefix, inner, whole = f"layers.{layer}.", experts.inner_size, experts.cut == "whole"
    unit = TPBlock(experts.count if whole else inner)
    up, down = ((0, (unit,)), (0, (unit,))) if whole else ((2, (unit, unit)), (1, (unit,)))
    yield Parameter(prefix + "router", layer, (hidden, experts.count))
    yield Parameter(prefix + "experts_gate_up", layer, (experts.count, hidden, 2 * inner), *up)
    yield Parameter(prefix + "experts_down", layer, (experts.count, inner, hidden), *down)


def _mlp(config: DecoderConfig, layer: int) -> Iterator[Parameter]:
    prefix, hidden, inner = f"layers.{layer}.", config.hidden_size, config.intermediate_size
    neurons = TPBlock(inner)
    up, wide = ("gate_up", (neurons, neurons)) if config.gated else ("up", (neurons,))
    yield Parameter(prefix + up, layer, (hidden, inner * len(wide)), 1, wide)
    if config.mlp_bias:
        yield Parameter(f"{prefix}{up}_bias", layer, (inner * len(wide),), 0, wide, decays=False)
    yield Parameter(prefix + "down", layer, (inner, hidden), 0, (neurons,))
    if config.mlp_bias:
        yield Parameter(prefix + "down_bias", layer, (hidden,), decays=False)


def _norm(config: DecoderConfig, name: str, layer: int) -> Iterator[Parameter]:
    yield Parameter(name, layer, (config.hidden_size,), decays=False)
    if config.norm == "layer":
        yield Parameter(name + "_bias", layer, (config.hidden_size,), decays=False)


def _head(config: DecoderConfig, layer: int) -> Iterator[Parameter]:
    prefix, hidden, rows = f"layers.{layer}.", config.hidden_size, config.vocabulary_size
    yield from _norm(config, prefix + "final_norm", layer)
    if config.head != "vocabulary":
        yield Parameter(prefix + "head", layer, (1, hidden))
    elif not config.tied:
        yield Parameter(prefix + "head", layer, (rows, hidden), 0, (TPBlock(rows, spare="padded"),))
    if config.head == "value":
        yield Parameter(prefix + "head_bias", layer, (1,), decays=False)


def pieces(config: DecoderConfig, parameter: Parameter) -> tuple[Piece, ...]:
    """The tensors that make up one parameter, in the order in which they are fused."""
    part = parameter.name.rsplit(".", 1)[1]
    block = f"model.layers.{parameter.layer - 1}."
    query, key, inner = config.query_size, config.kv_size, config.intermediate_size
    weight = not part.endswith("bias")
    suffix = "weight" if weight else "bias"
    match part:
        case "qkv" | "qkv_bias":
            return (
                Piece(f"{block}self_attn.q_proj.{suffix}", query, paired=True, transposed=weight),
                Piece(f"{block}self_attn.k_proj.{suffix}", key, paired=True, transposed=weight),
                Piece(f"{block}self_attn.v_proj.{suffix}", key, transposed=weight),
            )
        case "gate_up" | "gate_up_bias":
            return (
                Piece(f"{block}mlp.gate_proj.{suffix}", inner, transposed=weight),
                Piece(f"{block}mlp.up_proj.{suffix}", inner, transposed=weight),
            )
        case "output" | "output_bias":
            return (Piece(f"{block}self_attn.o_proj.{suffix}", config.hidden_size, transposed=weight),)
        case "down" | "down_bias":
            return (Piece(f"{block}mlp.down_proj.{suffix}", config.hidden_size, transposed=weight),)
        case "query_norm":
            return (Piece(f"{block}self_attn.q_norm.weight", config.head_dim, paired=True),)
        case "key_norm":
            return (Piece(f"{block}self_attn.k_norm.weight", config.head_dim, paired=True),)
        case "attention_norm":
            return (Piece(f"{block}input_layernorm.weight", config.hidden_size),)
        case "attention_post_norm":
            return (Piece(f"{block}post_attention_layernorm.weight", config.hidden_size),)
        case "mlp_norm":
            name = "pre_feedforward" if config.post_norms else "post_attention"
            return (Piece(f"{block}{name}_layernorm.weight", config.hidden_size),)
        case "mlp_post_norm":
            return (Piece(f"{block}post_feedforward_layernorm.weight", config.hidden_size),)
        case "embedding":
            return (Piece("model.embed_tokens.weight", config.vocabulary_size),)
        case "final_norm":
            return (Piece("model.norm.weight", config.hidden_size),)
        case "head_bias":
            return (Piece("score.bias", 1),)
        case _:
            return (Piece("lm_head.weight" if config.head == "vocabulary" else "score.weight", config.head_outputs),)


def expert_pieces(
    config: DecoderConfig, parameter: Parameter, mlp: str, names: tuple[str, str, str]
) -> tuple[Piece, ...]:
    """The same where blocks have experts, under the name of their `mlp`; `names` are an expert's gate, up and down."""
    part, experts = parameter.name.rsplit(".", 1)[1], config.experts
    if experts is None or part not in ("router", "experts_gate_up", "experts_down"):
        return pieces(config, parameter)
    place = f"model.layers.{parameter.layer - 1}.{mlp}."
    if part == "router":
        return (Piece(f"{place}gate.weight", experts.count, transposed=True),)
    gate, up, down = names
    rows = (
        {gate: experts.inner_size, up: experts.inner_size} if part == "experts_gate_up" else {down: config.hidden_size}
    )
    return tuple(
        Piece(f"{place}experts.{expert}.{name}.weight", count, transposed=True, matrix=expert)
        for expert in range(experts.count)
        for name, count in rows.items()
    )

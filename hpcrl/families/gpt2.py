"""GPT-2 (Radford et al. 2019): learned positions, LayerNorm, biases everywhere, an MLP without a gate.

Its matrices are stored [in, out] (transformers' Conv1D), as ours are, with query, key and value in one.
Dropout is read and left out: it changes no number of a model that is evaluated, and none is trained with it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import sqrt
from types import MappingProxyType
from typing import Any

from hpcrl.families import decoder
from hpcrl.families.config import DecoderConfig
from hpcrl.families.family import Family, Parameter, Piece
from hpcrl.families.fields import Fields

DROPOUTS = ("attn_pdrop", "embd_pdrop", "resid_pdrop")
SUMMARY = (
    "summary_type",
    "summary_use_proj",
    "summary_activation",
    "summary_proj_to_labels",
    "summary_first_dropout",
)
"""Of a head that none of ours is."""
CHOICES: Mapping[str, Any] = MappingProxyType(
    {
        **decoder.CHOICES,
        "norm": "layer",
        "positions": "learned",
        "activation": "gelu_tanh",
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
    }
)
NAMES: Mapping[str, str] = MappingProxyType(
    {
        "embedding": "wte.weight",
        "positions": "wpe.weight",
        "attention_norm": "ln_1.weight",
        "attention_norm_bias": "ln_1.bias",
        "qkv": "attn.c_attn.weight",
        "qkv_bias": "attn.c_attn.bias",
        "output": "attn.c_proj.weight",
        "output_bias": "attn.c_proj.bias",
        "mlp_norm": "ln_2.weight",
        "mlp_norm_bias": "ln_2.bias",
        "up": "mlp.c_fc.weight",
        "up_bias": "mlp.c_fc.bias",
        "down": "mlp.c_proj.weight",
        "down_bias": "mlp.c_proj.bias",
        "final_norm": "ln_f.weight",
        "final_norm_bias": "ln_f.bias",
    }
)
"""Our part → its tensor, within the trunk or its block."""
HEAD_NAMES = MappingProxyType({"vocabulary": "lm_head", "value": "classifier", "reward": "score"})
PREFIX = "transformer."


def _read(fields: Fields) -> DecoderConfig:
    for name in (*DROPOUTS, *SUMMARY, "classifier_dropout", "_num_labels"):
        fields.take(name)
    fields.require("is_encoder_decoder", False, False)
    fields.require("add_cross_attention", False, False)
    fields.require("activation_function", "gelu_new", "gelu_new")
    fields.require("scale_attn_weights", True, True)
    fields.require("scale_attn_by_inverse_layer_idx", False, False)
    fields.require("reorder_and_upcast_attn", False, False)
    heads, hidden = fields.size("n_head"), fields.size("n_embd")
    if hidden % heads:
        fields.refuse(f"n_embd = {hidden} is no multiple of n_head = {heads}.")
    positions = fields.size("n_positions", fields.take("n_ctx"))
    if (context := fields.take("n_ctx", positions)) != positions:
        fields.refuse(f"n_ctx = {context!r} differs from n_positions = {positions}.")
    return DecoderConfig(
        family=fields.family,
        vocabulary_size=fields.size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.size("n_inner", 4 * hidden),
        blocks=fields.size("n_layer"),
        heads=heads,
        kv_heads=heads,
        head_dim=max(1, hidden // heads),
        max_positions=positions,
        norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        tied=fields.flag("tie_word_embeddings", True),
        head=fields.head(),
        initializer_range=fields.number("initializer_range", 0.02),
        carried=fields.carried(),
        **CHOICES,
    )


def _write(config: DecoderConfig) -> dict[str, Any]:
    grouped = {"kv_heads": config.heads, "head_dim": config.hidden_size // config.heads}
    decoder.check_choices(config, "gpt2", {**CHOICES, **grouped})
    return {
        "model_type": "gpt2",
        **config.carried,
        "vocab_size": config.vocabulary_size,
        "n_positions": config.max_positions,
        "n_embd": config.hidden_size,
        "n_layer": config.blocks,
        "n_head": config.heads,
        "n_inner": config.intermediate_size,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": config.norm_eps,
        "initializer_range": config.initializer_range,
        "tie_word_embeddings": config.tied,
        **dict.fromkeys(DROPOUTS, 0.0),
    }


def _parameters(config: DecoderConfig) -> Iterator[Parameter]:
    """As in other decoders; what is added to the residual stream begins smaller, the more blocks add to it."""
    for parameter in decoder.parameters(config):
        if parameter.name.endswith((".output", ".down")):
            yield replace(parameter, init_scale=1 / sqrt(2 * config.blocks))
        else:
            yield parameter


def _pieces(config: DecoderConfig, parameter: Parameter) -> tuple[Piece, ...]:
    part = parameter.name.rsplit(".", 1)[1]
    if part in ("head", "head_bias"):
        name = f"{HEAD_NAMES[config.head]}.{'weight' if part == 'head' else 'bias'}"
    elif 1 <= parameter.layer <= config.blocks:
        name = f"{PREFIX}h.{parameter.layer - 1}.{NAMES[part]}"
    else:
        name = PREFIX + NAMES[part]
    return (Piece(name, parameter.shape[0]),)


FAMILY = Family(
    architecture="GPT2",
    read=_read,
    write=_write,
    parameters=_parameters,
    pieces=_pieces,
    heads={"LMHeadModel": "vocabulary", "ForTokenClassification": "value", "ForSequenceClassification": "reward"},
    positions="n_positions",
    prefix=PREFIX,
    ignored=(".attn.bias", ".attn.masked_bias"),
)

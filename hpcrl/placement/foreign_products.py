"""The products of a model that transformers computes, by the names and shapes of its tensors.

A decoder is known here whose blocks have nothing but attention by heads of the sizes that config.json says, and linear
layers or experts of usual names. Of any other nothing is said.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

from hpcrl.families.family import Parameter
from hpcrl.families.foreign import ForeignConfig
from hpcrl.families.reader import parameters_of
from hpcrl.placement.products import Product, adapter_products

ENTERS = frozenset({"q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value", "c_attn", "Wqkv"})
LEAVES = frozenset({"o_proj", "out_proj", "dense", "c_proj"})
"""What linear layers of attention are called, before heads and behind them."""
UP = frozenset({"gate_proj", "up_proj", "gate_up_proj", "fc1", "fc_in", "c_fc", "dense_h_to_4h", "w1", "w3"})
DOWN = frozenset({"down_proj", "fc2", "fc_out", "c_proj", "dense_4h_to_h", "w2"})
PICKS = frozenset({"gate", "router", "shared_expert_gate"})
EXPERTS = ".experts."
COUNT, PER_TOKEN = ("num_local_experts", "num_experts"), ("num_experts_per_tok",)
"""What config.json calls the number of experts of a block, and how many of them a token gets."""


def foreign_products(config: ForeignConfig, blocks: Iterable[int]) -> list[Product] | None:
    """Of these blocks, in the order of a forward pass; None where they cannot be told."""
    windows, matrices = _windows(config), _matrices(config)
    if windows is None or _has_others(config, matrices):
        return None
    found: list[Product] = []
    for layer in blocks:
        products = _block(config, layer, matrices.get(layer, []), windows[layer - 1])
        if products is None:
            return None
        found += products
    return found


def _matrices(config: ForeignConfig) -> Mapping[int, list[Parameter]]:
    """By layer, all tensors that are no vectors."""
    found: dict[int, list[Parameter]] = {}
    for parameter in parameters_of(config.base):
        if len(parameter.shape) > 1:
            found.setdefault(parameter.layer, []).append(parameter)
    return found


def _has_others(config: ForeignConfig, matrices: Mapping[int, list[Parameter]]) -> bool:
    """Whether there is a matrix outside of the blocks beside embeddings and one head."""
    behind = matrices.get(config.blocks + 1, [])
    return len(behind) > 1 or any(it.shape != (config.head_outputs, config.hidden_size) for it in behind)


def _windows(config: ForeignConfig) -> Sequence[int] | None:
    """Of all blocks."""
    window = config.carried.get("sliding_window")
    if not window or config.carried.get("use_sliding_window") is False:
        return [0] * config.blocks
    kinds = config.carried.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != config.blocks:
        return None
    return [window if kind == "sliding_attention" else 0 for kind in kinds]


def _block(config: ForeignConfig, layer: int, matrices: Iterable[Parameter], window: int) -> list[Product] | None:
    parts: dict[str, list[Product]] = {"enters": [], "leaves": [], "up": [], "down": []}
    adapters = adapter_products(config)
    for matrix in matrices:
        part, share = _part(matrix.name), _share(config, matrix)
        if part is None or share is None:
            return None
        size = round(prod(matrix.shape) * share)
        parts[part].append(Product(layer, size, *adapters.get(matrix.name, (0, 0))))
    enters, leaves = (sum(it.size for it in parts[part]) for part in ("enters", "leaves"))
    query, keys = config.query_size * config.hidden_size, config.kv_size * config.hidden_size
    if (enters, leaves) != (query + 2 * keys, query) or not parts["down"]:
        return None
    pairs = Product(layer, 2 * config.query_size, of_pairs=True, window=window)
    return [*parts["enters"], pairs, *parts["leaves"], *parts["up"], *parts["down"]]


def _part(name: str) -> str | None:
    """Where in a block a matrix is; None of one that is not known."""
    *path, module = name.removesuffix(".weight").split(".")
    if "attn" in path[-1] or "attention" in path[-1]:
        return "enters" if module in ENTERS else "leaves" if module in LEAVES else None
    return "up" if module in UP | PICKS else "down" if module in DOWN else None


def _share(config: ForeignConfig, matrix: Parameter) -> float | None:
    """How often a token meets a matrix, on the average; None where nobody says."""
    if EXPERTS not in matrix.name:
        return 1.0 if len(matrix.shape) == 2 else None
    count, per_token = _said(config.carried, COUNT), _said(config.carried, PER_TOKEN)
    return per_token / count if count and per_token else None


def _said(values: Mapping[str, Any], names: Iterable[str]) -> int | None:
    found = (values.get(name) for name in names)
    return next((size for size in found if isinstance(size, int) and size > 0), None)

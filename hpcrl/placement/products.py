"""The products of matrices that a model is, of one token or of a pair of tokens: what `flops` counts."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hpcrl.families.adapters import adapted_targets
from hpcrl.families.config import DecoderConfig
from hpcrl.families.reader import family_of


class Product(NamedTuple):
    """A product with a matrix, of one token; or attention, of a pair of tokens."""

    layer: int
    size: int
    """Multiplications."""
    inputs: int = 0
    """Multiplications with the first matrices of its adapters."""
    outputs: int = 0
    """The same with their second ones."""
    of_pairs: bool = False
    of_labels: bool = False
    window: int = 0
    ends: bool = False
    """Whether it comes after its block's attention."""
    trained: bool = False
    """Whether its matrix is trained where other matrices have adapters."""


def own_products(config: DecoderConfig, blocks: Iterable[int]) -> list[Product]:
    """Of these blocks, in the order of a forward pass."""
    return [product for layer in blocks for product in _block(config, layer)]


def _block(config: DecoderConfig, layer: int) -> Iterator[Product]:
    hidden, query = config.hidden_size, config.query_size
    adapters = adapter_products(config)
    prefix = f"layers.{layer}."
    yield Product(layer, hidden * (query + 2 * config.kv_size), *adapters.get(f"{prefix}qkv", (0, 0)))
    yield Product(layer, 2 * query, of_pairs=True, window=config.window(layer))
    yield Product(layer, query * hidden, *adapters.get(f"{prefix}output", (0, 0)), ends=True)
    if (experts := config.experts_of(layer)) is not None:
        yield Product(layer, hidden * experts.count, ends=True)
        yield Product(layer, experts.per_token * 3 * hidden * experts.inner_size, ends=True)
        return
    up = "gate_up" if config.gated else "up"
    width = config.intermediate_size * (2 if config.gated else 1)
    yield Product(layer, hidden * width, *adapters.get(f"{prefix}{up}", (0, 0)), ends=True)
    yield Product(layer, config.intermediate_size * hidden, *adapters.get(f"{prefix}down", (0, 0)), ends=True)


def head_product(config: DecoderConfig) -> Product:
    """Of one label. A head for values or rewards is trained with adapters."""
    size = config.hidden_size * config.head_outputs
    return Product(config.blocks + 1, size, of_labels=True, trained=config.head != "vocabulary")


def adapter_products(config: DecoderConfig) -> dict[str, tuple[int, int]]:
    """Name of a matrix → multiplications of a token with the first, and with the second matrices of its adapters."""
    if config.adapters is None:
        return {}
    found: dict[str, tuple[int, int]] = {}
    for target in adapted_targets(config, family_of(config.base)):
        inputs, outputs = found.get(target.matrix.name, (0, 0))
        rank = config.adapters.rank
        found[target.matrix.name] = inputs + rank * target.inputs, outputs + rank * target.outputs
    return found

"""Where each parameter of a shard lies in the shard's one flat buffer: arithmetic only, no tensors.

The model is a flat list of layers: 0 the embedding, 1 … n the blocks, n+1 the final norm and the head. A shard holds a
range of layers (pp) and one of `tp` equal cuts of the parameters that have a tensor-parallel dimension.
Matrices are stored [in, out] (a small batch multiplies faster so); a rotary head's rows are stored as
interleaved pairs (`hpcrl.models.rotary`). `hpcrl.models.families` says how that becomes a Hugging Face tensor.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from hpcrl.families.config import TransformerConfig

ALIGNMENT = 16
"""Parameters begin at multiples of so many elements: a cache line of fp32, and the 16 bytes that GPU kernels load."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a shard. `offset` counts elements from the start of the flat buffer.

    `tp_dim` is the dimension cut over tensor-parallel ranks (None: every rank holds all of it). `tp_blocks` are the
    sizes, in the whole model, of the pieces along that dimension that are cut one by one (query, key, value of a
    fused projection).
    """

    name: str
    layer: int
    shape: tuple[int, ...]
    offset: int = 0
    tp_dim: int | None = None
    tp_blocks: tuple[int, ...] = ()

    @property
    def numel(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class ParameterLayout:
    """The entries of a shard in buffer order, and the buffer's length in elements (gaps of alignment included)."""

    entries: tuple[Parameter, ...]
    numel: int


def lay_out(config: TransformerConfig, *, tp: int = 1, layers: range | None = None) -> ParameterLayout:
    """The layout of one tensor-parallel rank's shard of `layers` (None: all). Equal for all ranks of a tp group.

    Raises ValueError where `tp` does not divide a size that it has to divide.
    """
    wanted = range(config.blocks + 2) if layers is None else layers
    entries, offset = [], 0
    for whole in _whole_entries(config):
        if whole.layer not in wanted:
            continue
        entry = Parameter(whole.name, whole.layer, _cut(whole, tp), offset, whole.tp_dim, whole.tp_blocks)
        entries.append(entry)
        offset += -(-entry.numel // ALIGNMENT) * ALIGNMENT
    return ParameterLayout(tuple(entries), offset)


def _cut(entry: Parameter, tp: int) -> tuple[int, ...]:
    if entry.tp_dim is None or tp == 1:
        return entry.shape
    for block in entry.tp_blocks:
        if block % tp:
            raise ValueError(
                f"{entry.name} has a piece of {block} along dimension {entry.tp_dim}, "
                f"which tp = {tp} does not divide. Choose a tp that divides it."
            )
    shape = list(entry.shape)
    shape[entry.tp_dim] = sum(entry.tp_blocks) // tp
    return tuple(shape)


def _whole_entries(config: TransformerConfig) -> Iterator[Parameter]:
    yield Parameter(
        "layers.0.embedding",
        0,
        (config.vocabulary_size, config.hidden_size),
        tp_dim=0,
        tp_blocks=(config.vocabulary_size,),
    )
    for layer in range(1, config.blocks + 1):
        yield from _block_entries(config, layer)
    yield from _head_entries(config, config.blocks + 1)


def _block_entries(config: TransformerConfig, layer: int) -> Iterator[Parameter]:
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
    fused = (query, key, key)

    def entry(name: str, *shape: int, tp_dim: int | None = None, tp_blocks: tuple[int, ...] = ()) -> Parameter:
        return Parameter(f"layers.{layer}.{name}", layer, shape, tp_dim=tp_dim, tp_blocks=tp_blocks)

    yield entry("attention_norm", hidden)
    yield entry("qkv", hidden, sum(fused), tp_dim=1, tp_blocks=fused)
    if config.qkv_bias:
        yield entry("qkv_bias", sum(fused), tp_dim=0, tp_blocks=fused)
    yield entry("output", query, hidden, tp_dim=0, tp_blocks=(query,))
    yield entry("mlp_norm", hidden)
    yield entry("gate_up", hidden, 2 * inner, tp_dim=1, tp_blocks=(inner, inner))
    yield entry("down", inner, hidden, tp_dim=0, tp_blocks=(inner,))


def _head_entries(config: TransformerConfig, layer: int) -> Iterator[Parameter]:
    yield Parameter(f"layers.{layer}.final_norm", layer, (config.hidden_size,))
    if config.head == "vocabulary" and not config.tied:
        rows = config.vocabulary_size
        yield Parameter(f"layers.{layer}.head", layer, (rows, config.hidden_size), tp_dim=0, tp_blocks=(rows,))
    if config.head != "vocabulary":
        yield Parameter(f"layers.{layer}.head", layer, (1, config.hidden_size))
    if config.head == "value":
        yield Parameter(f"layers.{layer}.head_bias", layer, (1,))

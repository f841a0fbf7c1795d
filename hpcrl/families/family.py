"""What a model family declares in its file: config.json in and out, parameters, and their tensors at Hugging Face."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from hpcrl.families.config import DecoderConfig
from hpcrl.families.fields import Fields
from hpcrl.plugins import Room


@dataclass(frozen=True)
class Parameter:
    """One parameter of a model, whole. Knows no device, no cut and no place in memory.

    The model is a flat list of layers: 0 the embedding, 1 … n the blocks, n+1 the final norm and the head. `tp_dim` is
    the dimension that tensor-parallel ranks cut (None: every rank holds all of it); `tp_blocks` are the sizes of the
    pieces along it that are cut one by one (query, key, value of a fused projection).
    """

    name: str
    layer: int
    shape: tuple[int, ...]
    tp_dim: int | None = None
    tp_blocks: tuple[int, ...] = ()
    decays: bool = True
    """Whether weight decay applies."""

    @property
    def numel(self) -> int:
        return prod(self.shape)

    def cut(self, tp: int) -> "Parameter":
        """What one of `tp` tensor-parallel ranks holds of it. Raises ValueError where `tp` does not divide a piece."""
        if self.tp_dim is None:
            return self
        for block in self.tp_blocks:
            if block % tp:
                raise ValueError(
                    f"{self.name} has a piece of {block} along dimension {self.tp_dim}, "
                    f"which tp = {tp} does not divide. Choose a tp that divides it."
                )
        shape = (*self.shape[: self.tp_dim], sum(self.tp_blocks) // tp, *self.shape[self.tp_dim + 1 :])
        return replace(self, shape=shape)


@dataclass(frozen=True)
class Piece:
    """One Hugging Face tensor as a piece of a parameter of ours.

    Matrices are [out, in] there and [in, out] here; pieces of one parameter lie side by side along `out`. `rows` is
    the piece's size along `out`; `paired` says that its rows are rotary pairs, which we keep adjacent.
    """

    name: str
    rows: int
    paired: bool = False
    transposed: bool = False

    def stored_shape(self, parameter: Parameter) -> tuple[int, ...]:
        """The shape of the tensor in its file."""
        return (self.rows, *(parameter.shape[:-1] if self.transposed else parameter.shape[1:]))


@dataclass(frozen=True, kw_only=True)
class Family:
    """One `model_type` of Hugging Face."""

    architecture: str
    """What its classes' names begin with: `Qwen2` of `Qwen2ForCausalLM`."""
    read: Callable[[Fields], DecoderConfig]
    """Takes the fields of a config.json that it knows, with stand-ins for what is wrong, which the fields remember."""
    write: Callable[[DecoderConfig], Mapping[str, Any]]
    """A model's config.json, `model_type` included, without what `architectures` and the tensors' dtype add."""
    parameters: Callable[[DecoderConfig], Iterator[Parameter]]
    """All parameters, layer by layer."""
    pieces: Callable[[DecoderConfig, Parameter], tuple[Piece, ...]]
    """The tensors that make up a parameter, in the order in which they are fused."""
    block: str = "hpcrl.models.layers:Block"
    """The torch code of one of its blocks, as module:Class."""


FAMILIES = Room("hpcrl.families", "FAMILY", Family)

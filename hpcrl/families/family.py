"""What a model family declares in its file: config.json in and out, parameters, and their tensors at Hugging Face."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Literal

from hpcrl.families.config import DecoderConfig, HeadKind
from hpcrl.families.fields import HEADS, Fields
from hpcrl.families.places import Place, Span
from hpcrl.plugins import Room


@dataclass(frozen=True)
class TPBlock:
    """A piece of a fused parameter along the dimension that tensor-parallel ranks cut, each piece by itself.

    It is `units` of `size` elements (a head, a neuron, a token's row); no cut goes through a unit. `spare` says what
    becomes of it where `tp` does not divide the units: nobody cuts it so; key and value heads are `shared`, each by the
    same number of ranks; of `padded` rows the last ranks have fewer, and zeros in their place.
    """

    units: int
    size: int = 1
    spare: Literal["refused", "shared", "padded"] = "refused"

    @property
    def numel(self) -> int:
        return self.units * self.size

    def problem(self, tp: int) -> str:
        """Why it cannot be cut by `tp`; "" if it can."""
        if self.units % tp == 0 or self.spare == "padded":
            return ""
        if self.spare == "shared":
            return "" if tp % self.units == 0 else f"{self.units} and tp = {tp} divide each other in no way"
        return f"tp = {tp} does not divide {self.units}"

    def width(self, tp: int) -> int:
        """Elements that each rank has room for."""
        return -(-self.units // tp) * self.size

    def part(self, tensor: int, tp: int) -> tuple[int, int, bool]:
        """The first element that one rank has, how many it has, and whether it owns them."""
        if self.units < tp and self.spare == "shared":
            sharers = tp // self.units
            return tensor // sharers * self.size, self.size, tensor % sharers == 0
        first = min(tensor * self.width(tp), self.numel)
        return first, min(self.width(tp), self.numel - first), True


@dataclass(frozen=True)
class Parameter:
    """One parameter of a model, whole. Knows no device and no buffer.

    The model is a flat list of layers: 0 the embedding, 1 … n the blocks, n+1 the final norm and the head. `tp_dim` is
    the dimension that tensor-parallel ranks cut (None: every rank holds all of it), `tp_blocks` the pieces along it
    (query, key, value of a fused projection).
    """

    name: str
    layer: int
    shape: tuple[int, ...]
    tp_dim: int | None = None
    tp_blocks: tuple[TPBlock, ...] = ()
    decays: bool = True
    """Whether weight decay applies."""
    init_scale: float = 1.0
    """A new matrix's deviation, in the configuration's."""

    @property
    def numel(self) -> int:
        return prod(self.shape)

    def cut(self, tp: int) -> "Parameter":
        """As one of `tp` tensor-parallel ranks has it. Raises ValueError where it cannot be cut so."""
        if self.tp_dim is None or tp == 1:
            return self
        for block in self.tp_blocks:
            if problem := block.problem(tp):
                raise ValueError(f"{self.name} cannot be cut along dimension {self.tp_dim}: {problem}.")
        width = sum(block.width(tp) for block in self.tp_blocks)
        return replace(self, shape=(*self.shape[: self.tp_dim], width, *self.shape[self.tp_dim + 1 :]), tp_blocks=())

    def spans(self, tensor: int = 0, tp: int = 1) -> Iterator[Span]:
        """What tensor rank `tensor` of `tp` has of it, and where in what `cut` makes of it; padding is no span.

        Raises ValueError where it cannot be cut so.
        """
        if self.tp_dim is None or tp == 1:
            yield Span(Place(self.name, 0, 1, self.numel, self.numel), 0, self.numel, owned=tensor == 0)
            return
        inner = prod(self.shape[self.tp_dim + 1 :])
        rows, stride = prod(self.shape[: self.tp_dim]), self.shape[self.tp_dim] * inner
        step = self.cut(tp).shape[self.tp_dim] * inner
        whole, local = 0, 0
        for block in self.tp_blocks:
            first, count, owned = block.part(tensor, tp)
            if count:
                place = Place(self.name, (whole + first) * inner, rows, count * inner, stride)
                yield Span(place, local, step, owned).part(0, rows)
            whole, local = whole + block.numel, local + block.width(tp) * inner


@dataclass(frozen=True)
class Piece:
    """One Hugging Face tensor as a piece of a parameter of ours.

    Matrices are [in, out] here and most are [out, in] there (`transposed`); pieces of one parameter lie side by side
    along `out`. `rows` is the tensor's first size there; `paired` says that its rows are rotary pairs, which we keep
    adjacent. `matrix` is its number where the parameter has several, one behind another.
    """

    name: str
    rows: int
    paired: bool = False
    transposed: bool = False
    matrix: int | None = None

    def stored_shape(self, parameter: Parameter) -> tuple[int, ...]:
        """The shape of the tensor in its file."""
        shape = parameter.shape if self.matrix is None else parameter.shape[1:]
        return (self.rows, *(shape[:-1] if self.transposed else shape[1:]))


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
    heads: Mapping[str, HeadKind] = field(default_factory=lambda: HEADS)
    """What its classes' names end with, and the head that each has."""
    positions: str = "max_position_embeddings"
    """The field of config.json that bounds a text's length."""
    prefix: str = ""
    """What begins the names of its tensors, and is missing from them where a folder holds a model without its head."""
    ignored: tuple[str, ...] = ("rotary_emb.inv_freq",)
    """How tensors end that old folders hold and that are no parameters."""
    block: str = "hpcrl.models.layers:Block"
    """The torch code of one of its blocks, as module:Class."""


FAMILIES = Room("hpcrl.families", "FAMILY", Family)

"""What a model family has to say when it is loaded and saved; `hpcrl.families.reader` reads its config.json."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpcrl.families.config import TransformerConfig
from hpcrl.families.reader import FAMILY_FIELDS
from hpcrl.models.layout import Parameter


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


@dataclass(frozen=True)
class Family:
    """One `model_type` of Hugging Face."""

    name: str
    write: Callable[[TransformerConfig], Mapping[str, Any]]
    """config.json of a model, without what `architectures`, the type and the tensors' dtype add."""
    pieces: Callable[[TransformerConfig, Parameter], tuple[Piece, ...]]
    """Which tensors a parameter is made of."""

    @property
    def architecture(self) -> str:
        """What its classes' names begin with: `Qwen2` of `Qwen2ForCausalLM`."""
        return FAMILY_FIELDS[self.name].architecture

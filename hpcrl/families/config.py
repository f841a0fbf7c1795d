"""What a decoder-only transformer is made of, in numbers. Knows no tensors and no file formats."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hpcrl.families.fields import HeadKind, RotaryConfig


@dataclass(frozen=True)
class TransformerConfig:
    """The mathematics of one model, and what else its config.json said that an export must say again."""

    family: str
    vocabulary_size: int
    hidden_size: int
    intermediate_size: int
    blocks: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    norm_eps: float = 1e-6
    rotary: RotaryConfig = field(default_factory=RotaryConfig)
    qkv_bias: bool = False
    tied: bool = False
    head: HeadKind = "vocabulary"
    initializer_range: float = 0.02
    carried: Mapping[str, Any] = field(default_factory=dict)
    """Fields of config.json that change no number (token ids and the like), carried to the export."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that end a text, as config.json names them; empty where it names none."""
        eos = self.carried.get("eos_token_id")
        if eos is None:
            return ()
        return tuple(eos) if isinstance(eos, list | tuple) else (int(eos),)

    @property
    def head_outputs(self) -> int:
        """Numbers that the head gives for a token."""
        return self.vocabulary_size if self.head == "vocabulary" else 1

    @property
    def shares_embedding(self) -> bool:
        """Whether the head multiplies by the embedding's own matrix."""
        return self.tied and self.head == "vocabulary"

    def with_head(self, head: HeadKind) -> "TransformerConfig":
        """The same trunk under another head."""
        return replace(self, head=head)

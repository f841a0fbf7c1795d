"""What a decoder-only transformer is made of, in numbers. Knows no tensors and no file formats."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

HeadKind = Literal["vocabulary", "value", "reward"]
"""vocabulary: logits of the next token. value: one number a token, with a bias. reward: one, read at the last token."""


@dataclass(frozen=True)
class RotaryConfig:
    """Rotary position embedding (arXiv 2104.09864). `linear` divides all frequencies, `llama3` only the low ones."""

    theta: float = 10000.0
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_max_positions: int = 0


@dataclass(frozen=True)
class DecoderConfig:
    """The mathematics of one model, and what else its config.json said that an export must say again."""

    family: str
    """What declares its parameters and its files: a name, or `file.py:NAME`."""
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
    def query_size(self) -> int:
        """Length of a token's queries in one block."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Length of a token's keys, and of its values, in one block."""
        return self.kv_heads * self.head_dim

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

    def with_head(self, head: HeadKind) -> "DecoderConfig":
        """The same trunk under another head."""
        return replace(self, head=head)

"""What a kind of row says of its texts: what a line has, and what becomes of it. Knows no files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcrl.data.form import Form
from hpcrl.data.jsonl import PromptLine

if TYPE_CHECKING:
    # Whoever plans a run needs no arrays.
    import numpy as np

    from hpcrl.data.samples import Row
    from hpcrl.data.tokens import Tokens


@dataclass(frozen=True, eq=False)
class Encoded:
    """A row in tokens, under keys that are not those of an evaluation."""

    rows: "Mapping[str, Row]"
    prompt: int
    """Tokens of the prompt."""
    answer: int
    """Tokens of the longest answer with its EOS; 0 where none is read."""
    tokens: int
    """Of all sequences that a model is given of it."""


@dataclass(frozen=True, kw_only=True)
class TextForm:
    """What a line of a kind has, and what its texts become."""

    line: type[PromptLine]
    keys: Mapping[str, Form]
    encode: "Callable[[Tokens, Sequence[np.ndarray], Sequence[Mapping[str, Any]]], list[Encoded]]"
    """(tokenizer, tokens of the prompts, records) → the rows."""
    has_answers: bool
    """Whether it reads more than the prompt."""

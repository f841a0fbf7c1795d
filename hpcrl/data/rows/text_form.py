"""What a kind of row says of its texts: what a line has, and what becomes of it. Knows no files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcrl.data.form import Form
from hpcrl.data.rows.lines import Lines

if TYPE_CHECKING:
    # Whoever plans a run needs no arrays.
    from hpcrl.data.rows.turns import TextRow
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

    lines: Lines
    """The first that a row's columns fit."""
    keys: Mapping[str, Form]
    encode: "Callable[[Tokens, Sequence[TextRow]], list[Encoded]]"
    """(tokenizer, records with the tokens of their prompts) → the rows."""
    has_answers: bool
    """Whether it reads more than the prompt."""
    completions: tuple[str, ...] = ()
    """Fields of `normal` records with a text or a chat for each pair, which follows the prompt."""

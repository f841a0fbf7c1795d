"""Rows with a prompt and pairs of answers, of which the first is preferred. A row's pairs are one sample.

Of sample i, sub-sequence p of "chosen" and of "rejected", and number p of "margins", are its pair p.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcrl.data.form import NUMBERS, TOKENS
from hpcrl.data.rows.lines import PromptLine
from hpcrl.data.rows.text_form import Encoded, TextForm
from hpcrl.data.rows.text_rows import text_rows

if TYPE_CHECKING:
    import numpy as np

    from hpcrl.data.rows.turns import TextRow
    from hpcrl.data.samples import Row
    from hpcrl.data.tokens import Tokens


class PairsLine(PromptLine, kw_only=True):
    """A prompt with one pair or several: texts, or lists of as many texts. A margin says by how much chosen wins."""

    chosen: str | list[str]
    rejected: str | list[str]
    margin: float | list[float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen, rejected = len(listed(self.chosen)), len(listed(self.rejected))
        if not chosen or chosen != rejected:
            raise ValueError(
                f"chosen has {chosen} texts and rejected {rejected}; a pair is one of each, and one is due"
            )
        if self.margin is not None and len(listed(self.margin)) != chosen:
            raise ValueError(f"margin has {len(listed(self.margin))} numbers for {chosen} pairs; each pair needs one")


def listed(field: Any) -> list[Any]:
    """What a field has for each pair."""
    return field if isinstance(field, list) else [field]


def _encode(tokens: "Tokens", rows: "Sequence[TextRow]") -> list[Encoded]:
    return [_row(tokens, row.prompt, row.record) for row in rows]


def _row(tokens: "Tokens", prompt: "np.ndarray", record: Mapping[str, Any]) -> Encoded:
    """A row's chosen and rejected answers, each with its EOS; a pair without a margin has 0."""
    import numpy as np

    chosen, rejected = (tokens.encode_answers(listed(record[field])) for field in ("chosen", "rejected"))
    margin = record.get("margin")
    margins = np.array([0.0] * len(chosen) if margin is None else listed(margin), np.float32)
    rows: dict[str, Row] = {"prompts": prompt, "chosen": chosen, "rejected": rejected, "margins": margins}
    lengths = [len(answer) for answer in (*chosen, *rejected)]
    return Encoded(rows, len(prompt), max(lengths), len(prompt) * len(lengths) + sum(lengths))


PAIRS = text_rows(
    TextForm(
        lines=(PairsLine,),
        keys={"prompts": TOKENS, "chosen": TOKENS, "rejected": TOKENS, "margins": NUMBERS},
        encode=_encode,
        has_answers=True,
    )
)

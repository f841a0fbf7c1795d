"""Rows with a prompt and pairs of answers, of which the first is preferred. A row's pairs are one sample.

Of sample i, sub-sequence p of "chosen" and of "rejected", and number p of "margins", are its pair p.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcrl.data.form import NUMBERS, TOKENS
from hpcrl.data.rows.pair_lines import PairsLine, WholePairsLine, listed
from hpcrl.data.rows.text_form import Encoded, TextForm
from hpcrl.data.rows.text_rows import text_rows

if TYPE_CHECKING:
    from hpcrl.data.rows.turns import TextRow
    from hpcrl.data.samples import Row
    from hpcrl.data.tokens import Tokens

SIDES = ("chosen", "rejected")


def _encode(tokens: "Tokens", rows: "Sequence[TextRow]") -> list[Encoded]:
    return [_row(tokens, row) for row in rows]


def _row(tokens: "Tokens", row: "TextRow") -> Encoded:
    """A row's chosen and rejected answers, each with its EOS; a pair without a margin has 0."""
    import numpy as np

    prompt, record = row.prompt, row.record
    chosen, rejected = (row.completions.get(side) or tokens.encode_answers(record[side]) for side in SIDES)
    margin = record.get("margin")
    margins = np.array([0.0] * len(chosen) if margin is None else listed(margin), np.float32)
    rows: dict[str, Row] = {"prompts": prompt, "chosen": chosen, "rejected": rejected, "margins": margins}
    lengths = [len(answer) for answer in (*chosen, *rejected)]
    return Encoded(rows, len(prompt), max(lengths), len(prompt) * len(lengths) + sum(lengths))


PAIRS = text_rows(
    TextForm(
        lines=(PairsLine, WholePairsLine),
        keys={"prompts": TOKENS, "chosen": TOKENS, "rejected": TOKENS, "margins": NUMBERS},
        encode=_encode,
        has_answers=True,
        completions=SIDES,
    )
)

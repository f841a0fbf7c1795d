"""Rows with a prompt and the answer that is learnt, as far as `answer_mask` says; it is all of a plain answer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hpcrl.data.form import FLAGS, TOKENS
from hpcrl.data.rows.kind import RowKind
from hpcrl.data.rows.lines import ANSWERED, JUDGED, Lines
from hpcrl.data.rows.text_form import Encoded, TextForm
from hpcrl.data.rows.text_rows import text_rows

if TYPE_CHECKING:
    from hpcrl.data.rows.turns import TextRow
    from hpcrl.data.samples import Row
    from hpcrl.data.tokens import Tokens


def _encode(tokens: "Tokens", rows: "Sequence[TextRow]") -> list[Encoded]:
    import numpy as np

    plain = iter(tokens.encode_answers([row.record["answer"] for row in rows if row.answer is None]))
    found = []
    for row in rows:
        answer = next(plain) if row.answer is None else row.answer
        learnt = np.ones(len(answer), np.bool_) if row.learnt is None else row.learnt
        keys: dict[str, Row] = {"prompts": row.prompt, "answers": answer, "answer_mask": learnt}
        found.append(Encoded(keys, len(row.prompt), len(answer), len(row.prompt) + len(answer)))
    return found


def _rows(lines: Lines) -> RowKind[Any]:
    keys = {"prompts": TOKENS, "answers": TOKENS, "answer_mask": FLAGS}
    return text_rows(TextForm(lines=lines, keys=keys, encode=_encode, has_answers=True))


ANSWERS = _rows(ANSWERED)
COMPARED = _rows(JUDGED)
"""The answer may be what a response is compared with, as verl has it."""

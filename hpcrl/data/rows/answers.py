"""Rows with a prompt and the answer that is learnt."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcrl.data.form import TOKENS
from hpcrl.data.jsonl import AnswerLine
from hpcrl.data.rows.text_form import Encoded, TextForm
from hpcrl.data.rows.text_rows import text_rows

if TYPE_CHECKING:
    import numpy as np

    from hpcrl.data.tokens import Tokens


def _encode(tokens: "Tokens", prompts: "Sequence[np.ndarray]", records: Sequence[Mapping[str, Any]]) -> list[Encoded]:
    answers = tokens.encode_answers([record["answer"] for record in records])
    return [
        Encoded({"prompts": prompt, "answers": answer}, len(prompt), len(answer), len(prompt) + len(answer))
        for prompt, answer in zip(prompts, answers, strict=True)
    ]


ANSWERS = text_rows(
    TextForm(line=AnswerLine, keys={"prompts": TOKENS, "answers": TOKENS}, encode=_encode, has_answers=True)
)

"""Rows with a prompt that responses are generated to."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcrl.data.form import TOKENS
from hpcrl.data.jsonl import PromptLine
from hpcrl.data.rows.text_form import Encoded, TextForm
from hpcrl.data.rows.text_rows import text_rows

if TYPE_CHECKING:
    import numpy as np

    from hpcrl.data.tokens import Tokens


def _encode(tokens: "Tokens", prompts: "Sequence[np.ndarray]", records: Sequence[Mapping[str, Any]]) -> list[Encoded]:
    return [Encoded({"prompts": prompt}, len(prompt), 0, len(prompt)) for prompt in prompts]


PROMPTS = text_rows(TextForm(line=PromptLine, keys={"prompts": TOKENS}, encode=_encode, has_answers=False))

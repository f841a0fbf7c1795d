"""Rows with a prompt that responses are generated to."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcrl.data.form import TOKENS
from hpcrl.data.rows.lines import PROMPTED
from hpcrl.data.rows.text_form import Encoded, TextForm
from hpcrl.data.rows.text_rows import text_rows

if TYPE_CHECKING:
    from hpcrl.data.rows.turns import TextRow
    from hpcrl.data.tokens import Tokens


def _encode(tokens: "Tokens", rows: "Sequence[TextRow]") -> list[Encoded]:
    return [Encoded({"prompts": prompt}, len(prompt), 0, len(prompt)) for prompt in (row.prompt for row in rows)]


PROMPTS = text_rows(TextForm(lines=PROMPTED, keys={"prompts": TOKENS}, encode=_encode, has_answers=False))

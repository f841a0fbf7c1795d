"""Rows with a prompt that responses are generated to."""

from hpcrl.data.rows.text_rows import text_rows

PROMPTS = text_rows(fields=("prompt",), keys=("prompts",))

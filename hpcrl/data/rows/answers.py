"""Rows with a prompt and the answer that is learnt."""

from hpcrl.data.rows.text_rows import text_rows

ANSWERS = text_rows(fields=("prompt", "answer"), keys=("prompts", "answers"))

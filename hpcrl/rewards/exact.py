"""The reward of an exact match: is the response the row's answer, but for white space around it?"""

from collections.abc import Mapping
from typing import Any

from hpcrl.errors import DataError


def score(prompt: str, response: str, record: Mapping[str, Any]) -> float:
    """1 if the response is `record["answer"]`, else 0."""
    answer = record.get("answer")
    if not isinstance(answer, str):
        raise DataError(f"row {record.get('id')!r} has the answer {answer!r}; an exact match needs a text.")
    return float(response.strip() == answer.strip())

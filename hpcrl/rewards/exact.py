"""The reward of an exact match: is the response the row's answer, but for white space around it?"""

from collections.abc import Mapping
from typing import Any

from hpcrl.rewards.response import expected_text


def score(response: str, row: Mapping[str, Any]) -> float:
    """1 if the response is what the row says is right, else 0. Raises DataError where the row does not say it."""
    return float(response.strip() == expected_text(row, "an exact match needs a text").strip())

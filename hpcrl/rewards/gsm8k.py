"""The reward of GSM8K (Cobbe et al. 2021): is the number after the last "####" the right one?

Both parsers are those of verl's `reward_score/gsm8k.py`, quirks included, so that scores can be compared.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

from hpcrl.rewards.response import expected_text

LOOKED_AT = 300
"""Characters at the end of a response in which its number is looked for."""
AFTER_HASHES = re.compile(r"#### (-?[0-9.,]+)")
NUMBER = re.compile(r"(-?[0-9.,]+)")


def strict(response: str) -> str | None:
    """The number after the last "#### ", without its thousands separators."""
    found = AFTER_HASHES.findall(response[-LOOKED_AT:])
    return _without_separators(found[-1]) if found else None


def flexible(response: str) -> str | None:
    """The last thing that looks like a number, as it stands."""
    found = [number for number in NUMBER.findall(response[-LOOKED_AT:]) if number not in ("", ".")]
    return found[-1] if found else None


def score(
    response: str,
    row: Mapping[str, Any],
    *,
    method: Literal["strict", "flexible"] = "strict",
    format_score: float = 0.0,
) -> float:
    """1 for the right number, `format_score` for a wrong one, 0 for none.

    What the row says is right ends with "#### NUMBER" or is the number alone.
    """
    number = (strict if method == "strict" else flexible)(response)
    if number is None:
        return 0.0
    return 1.0 if number == expected(row) else format_score


def expected(row: Mapping[str, Any]) -> str:
    """The number that is right. Raises DataError where the row has no text that says it."""
    answer = expected_text(row, "gsm8k needs a text with '#### NUMBER'")
    found = AFTER_HASHES.findall(answer)
    return _without_separators(found[-1] if found else answer.strip())


def _without_separators(number: str) -> str:
    return number.replace(",", "").replace("$", "")

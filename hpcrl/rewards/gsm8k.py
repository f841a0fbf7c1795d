"""The reward of GSM8K (Cobbe et al. 2021): is the number after the last "####" the right one?

Both parsers are those of verl's `reward_score/gsm8k.py`, quirks included, so that scores can be compared.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from hpcrl.errors import ConfigurationError, DataError

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
    prompt: str, response: str, record: Mapping[str, Any], *, method: str = "strict", format_score: float = 0.0
) -> float:
    """1 for the right number, `format_score` for a wrong one, 0 for none.

    `record["answer"]` ends with "#### NUMBER" or is the number alone.
    """
    parsers: dict[str, Callable[[str], str | None]] = {"strict": strict, "flexible": flexible}
    if method not in parsers:
        raise ConfigurationError([f"reward.kwargs.method is {method!r}, but gsm8k knows {', '.join(parsers)}."])
    number = parsers[method](response)
    if number is None:
        return 0.0
    return 1.0 if number == expected(record) else format_score


def expected(record: Mapping[str, Any]) -> str:
    """The number that a row's answer gives."""
    answer = record.get("answer")
    if not isinstance(answer, str):
        raise DataError(f"row {record.get('id')!r} has the answer {answer!r}; gsm8k needs a text with '#### NUMBER'.")
    found = AFTER_HASHES.findall(answer)
    return _without_separators(found[-1] if found else answer.strip())


def _without_separators(number: str) -> str:
    return number.replace(",", "").replace("$", "")

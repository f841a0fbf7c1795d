r"""The reward of competition mathematics: is what stands in the last \boxed{} the right answer?

`text` normalises both sides and compares them as texts, as verl's `reward_score/math_reward.py` and Hendrycks et al.
(2021) do, quirks included, so that scores can be compared. `verify` has math-verify compare them as mathematics, with
its own time limits off (they are signals of the main thread, and turn what takes long into "wrong").
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

from hpcrl.errors import MissingExtraError
from hpcrl.rewards.response import expected_text

_REMOVED = ("\n", "\\!")
_AFTER_BACKSLASHES = (
    ("tfrac", "frac"),
    ("dfrac", "frac"),
    ("\\left", ""),
    ("\\right", ""),
    ("^{\\circ}", ""),
    ("^\\circ", ""),
    ("\\$", ""),
)
_NUMBERS = (("\\\\%", ""), ("\\%", ""), (" .", " 0."), ("{.", "{0."))
_INTEGER_FRACTION = re.compile(r"(-?[1-9][0-9]*|0)/(-?[1-9][0-9]*|0)")


def score(response: str, row: Mapping[str, Any], *, method: Literal["text", "verify"] = "text") -> float:
    """1 for the right answer, else 0.

    Raises:
        DataError: the row does not say what is right.
        MissingExtraError: math-verify is not installed.
        Exception: whatever math-verify raises, which says nothing about the response.
    """
    answer = expected_text(row, "math needs a text")
    if method == "verify":
        return float(verified(response, answer))
    found = last_boxed(response)
    return float(found is not None and are_equal(found, boxed_or_whole(answer)))


def last_boxed(text: str) -> str | None:
    r"""What is in the braces of the last \boxed, or behind it up to a "$" where a space follows it; else None."""
    if "\\boxed " in text:
        return text.rpartition("\\boxed ")[2].partition("$")[0]
    start = text.rfind("\\boxed{")
    if start < 0 or text.rfind("\\boxed") > start:
        return None
    depth, first = 0, start + len("\\boxed{")
    for at in range(first - 1, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return text[first:at]
    return None


def boxed_or_whole(answer: str) -> str:
    """The answer of a row that is a whole solution, or the answer alone."""
    found = last_boxed(answer)
    return answer if found is None else found


def are_equal(found: str, expected: str) -> bool:
    """As texts, once both are normalised; as they stand where one is no LaTeX that can be."""
    try:
        return normalised(found) == normalised(expected)
    except ValueError:
        return found == expected


def normalised(latex: str) -> str:
    r"""An answer without what does not change it: spaces, units, \left, \dfrac for \frac, 1/2 for \frac{1}{2}, …

    Raises:
        ValueError: a command lacks its argument.
    """
    for removed in _REMOVED:
        latex = latex.replace(removed, "")
    latex = _replaced(latex.replace("\\\\", "\\"), _AFTER_BACKSLASHES)
    latex = _replaced(_without_unit(latex), _NUMBERS)
    if latex.startswith("."):
        latex = f"0{latex}"
    name, equals, value = latex.partition("=")
    if equals and "=" not in value and len(name) <= 2:
        latex = value
    latex = _fractions(_roots(latex).replace(" ", ""))
    return _slash("\\frac{1}{2}" if latex == "0.5" else latex)


def _replaced(latex: str, pairs: tuple[tuple[str, str], ...]) -> str:
    for old, new in pairs:
        latex = latex.replace(old, new)
    return latex


def _without_unit(latex: str) -> str:
    r"""A unit is written as "\text{ cm}" behind the number."""
    value, *others = latex.split("\\text{ ")
    if len(others) > 1:
        raise ValueError("several units")
    return value


def _roots(latex: str) -> str:
    r"""\sqrt3 as \sqrt{3}."""
    value, *others = latex.split("\\sqrt")
    if not all(others):
        raise ValueError("a root of nothing")
    return value + "".join(f"\\sqrt{it}" if it[0] == "{" else f"\\sqrt{{{it[0]}}}{it[1:]}" for it in others)


def _fractions(latex: str) -> str:
    r"""\frac12 as \frac{1}{2}, and \frac1{72} as \frac{1}{72}."""
    value, *others = latex.split("\\frac")
    for other in others:
        if not other:
            raise ValueError("a fraction of nothing")
        if other[0] == "{":
            value += f"\\frac{other}"
        elif len(other) < 2:
            return latex
        else:
            value += f"\\frac{{{other[0]}}}" + (other[1:] if other[1] == "{" else f"{{{other[1]}}}{other[2:]}")
    return value


def _slash(latex: str) -> str:
    r"""A ratio of whole numbers as a \frac."""
    found = _INTEGER_FRACTION.fullmatch(latex)
    return latex if found is None else f"\\frac{{{found[1]}}}{{{found[2]}}}"


def verified(response: str, answer: str) -> bool:
    """Whether math-verify takes the response's answer for the right one. May take for ever."""
    try:
        from math_verify.grader import verify
        from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig, parse
    except ImportError:
        raise MissingExtraError("math-verify", "math") from None
    latex, expression = LatexExtractionConfig(), ExprExtractionConfig()
    boxed = f"\\boxed{{{boxed_or_whole(answer)}}}"
    gold = parse(boxed, (latex,), parsing_timeout=None, raise_on_error=True)
    given = parse(response, (expression, latex), parsing_timeout=None, raise_on_error=True)
    return bool(verify(gold, given, timeout_seconds=None, raise_on_error=True))

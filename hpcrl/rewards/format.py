"""The reward of a form: does the whole response match a regular expression?"""

import re


def score(response: str, *, pattern: str) -> float:
    """1 if it does, else 0. A dot matches line breaks too."""
    return float(re.fullmatch(pattern, response, re.DOTALL) is not None)

"""Where a score belongs among the tokens of a response."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from hpcrl.data.tokens import BYTES, HALF
from hpcrl.rewards.run import Scored


def token_rewards(scored: Scored, tokens: np.ndarray, decode: Callable[[np.ndarray], str]) -> np.ndarray:
    """float32 [T]: each share of the reward at the token that ends at its place, the rest at the last one; float32 [0]
    where all of it is at the end anyway, or there is none."""
    if not scored.places or np.isnan(scored.total) or not len(tokens):
        return np.zeros(0, np.float32)
    found = np.zeros(len(tokens))
    for end, number in scored.places:
        found[token_at(end, tokens, decode)] += number
    found[-1] += scored.total - math.fsum(number for _, number in scored.places)
    return found.astype(np.float32)


def token_at(end: int, tokens: Sequence[int] | np.ndarray, decode: Callable[[np.ndarray], str]) -> int:
    """The first token with which `end` characters of the text are there; the last one, where the text is shorter."""
    low, high = 0, len(tokens) - 1
    while low < high:
        middle = (low + high) // 2
        # A byte of a character that has only begun may hide the characters before it.
        counts = range(middle + 1, max(0, middle + 1 - BYTES), -1)
        if any(len(decode(np.asarray(tokens[:count])).rstrip(HALF)) >= end for count in counts):
            high = middle
        else:
            low = middle + 1
    return low

"""The reward of a length: DAPO's penalty of overlong responses (Yu et al. 2025, arXiv:2503.14476, equation 13)."""

from collections.abc import Sequence


def score(tokens: Sequence[int], *, most: int, buffer: float = 1.0) -> float:
    """0 up to `most` - `buffer` tokens, from there falling linearly to -1 at `most`."""
    return -min(max((len(tokens) - (most - buffer)) / buffer, 0.0), 1.0)

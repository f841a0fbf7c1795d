"""How many tokens a slot of a generation's cache has room for. Knows no tensors."""

LENGTH_STEP = 16
"""Attention reads lengths that are multiples of this: on a CPU its bits then do not depend on how long others are."""


def rounded(length: int) -> int:
    """`length` rounded up to a multiple of LENGTH_STEP."""
    return -(-length // LENGTH_STEP) * LENGTH_STEP


def capacity(longest: int, window: int = 0) -> int:
    """Tokens that a slot has room for, of rows of at most so many, of which a token sees a window (0: all)."""
    return rounded(min(longest, window) if window else longest)

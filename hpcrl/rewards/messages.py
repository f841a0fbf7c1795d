"""What crosses between a worker and the processes of a user's reward function: JSON lines, by producer → consumer.

Before the first of them the worker sends a nonce, and believes only answers that begin with it.
"""

from typing import Any

import msgspec

AHEAD = 32
"""Lines that may be on their way at most."""
NONCE_BYTES = 32


# ── worker → process ──────────────────────────────────────────────────────────────────────────────────────────────────
class Load(msgspec.Struct, frozen=True):
    """The first: the function, as the configuration names it, and its further named arguments."""

    function: str
    kwargs: dict[str, Any]


class ToScore(msgspec.Struct, frozen=True):
    """Every other: one response; `number` is one more than that of the line before it, and 1 is `Load`."""

    number: int
    prompt: str
    response: str
    record: dict[str, Any]


# ── process → worker ──────────────────────────────────────────────────────────────────────────────────────────────────
class Scored(msgspec.Struct, frozen=True):
    """One per line, behind the nonce: a score (0 for a `Load` that worked), or what went wrong.

    `traceback` is the user's part of it; `ended` says how the function's process has ended (-n for signal n).
    """

    score: float | None = None
    error: str = ""
    traceback: str = ""
    ended: int | None = None

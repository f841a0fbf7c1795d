"""What crosses between a worker and the process of a user's reward function: JSON lines, by producer → consumer."""

from typing import Any

import msgspec


# ── worker → process ──────────────────────────────────────────────────────────────────────────────────────────────────
class Load(msgspec.Struct, frozen=True):
    """The first line: the function, as the configuration names it, and its further named arguments."""

    function: str
    kwargs: dict[str, Any]


class ToScore(msgspec.Struct, frozen=True):
    """Every further line: one response."""

    prompt: str
    response: str
    record: dict[str, Any]


# ── process → worker ──────────────────────────────────────────────────────────────────────────────────────────────────
class Scored(msgspec.Struct, frozen=True):
    """One per line: a score (0 for a `Load` that worked), or what went wrong and the user's part of the traceback."""

    score: float | None = None
    error: str = ""
    traceback: str = ""

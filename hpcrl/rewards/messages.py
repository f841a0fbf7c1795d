"""What crosses between a worker and a process of a user's reward function: JSON lines, by producer → consumer.

Before the first of them the worker sends a nonce, and believes only answers that begin with it.
"""

from typing import Any

import msgspec

from hpcrl.rewards.response import Response, Result

AHEAD = 32
"""Lines that may be on their way to a function that scores one response at a time."""
NONCE_BYTES = 32


# ── worker → process ──────────────────────────────────────────────────────────────────────────────────────────────────
class Load(msgspec.Struct, frozen=True):
    """The first: the function, as the configuration names it, and its further named arguments."""

    function: str
    kwargs: dict[str, Any]
    concurrency: int
    """Lines that an asynchronous function works on at a time."""
    timeout_s: float
    """A line whose answer takes an asynchronous function longer is given up; any other is the worker's to time."""
    answers: bool = False
    """It is an environment, and returns answers; any other function returns scores."""


class ToScore(msgspec.Struct, frozen=True):
    """Every other: one response, or several for a function that takes them together; `number` is one more than that of
    the line before it, and 1 is `Load`."""

    number: int
    responses: list[Response]


# ── process → worker ──────────────────────────────────────────────────────────────────────────────────────────────────
class Takes(msgspec.Struct, frozen=True):
    """How a function wants to be called."""

    several: bool = False
    """All responses of a line together."""
    tokens: bool = False
    """Tokens too, which are not sent otherwise."""
    awaited: bool = False
    """It is asynchronous."""


class Reply(msgspec.Struct, frozen=True):
    """One per line, behind the nonce: a result per response (`takes` for a `Load` that worked), or what went wrong.

    `traceback` is the user's part of it; `ended` says how the function's process has ended (-n for signal n).
    """

    results: list[Result] = []
    takes: Takes | None = None
    error: str = ""
    traceback: str = ""
    unusable: bool = False
    """Its file could be imported, and has no such function, or one that cannot be called as it would be."""
    late: bool = False
    """An asynchronous function has taken longer than it may."""
    broken: bool = False
    """Its process can answer nothing more."""
    ended: int | None = None

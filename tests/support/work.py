"""How much a function does, which is the same on every machine and beside any load: a limit in seconds is not."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def calls_in(work: Callable[[], T]) -> tuple[T, int]:
    """What `work` returns, and how many functions of Python and C were called in this thread meanwhile."""
    called = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal called
        called += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        result = work()
    finally:
        sys.setprofile(before)
    return result, called

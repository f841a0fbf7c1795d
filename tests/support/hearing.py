"""Waiting for what comes over a connection."""

import time
from collections.abc import Callable


def within(seconds: float, look: Callable[[], list]) -> list:
    """What `look` finds, as soon as it finds something."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.005)
    return []

"""Python's search for garbage: objects that only have each other."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """What is made meanwhile stays, or is freed as soon as nobody has it: nobody looks for garbage among it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()

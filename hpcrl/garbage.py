"""Python's search for garbage: objects that only have each other."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """What is made meanwhile stays, or is freed as soon as nobody has it: nobody looks for garbage among it, nor at the
    end, unless something is `kept`: all of it is old by then."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
        if collects:
            gc.enable()


@contextmanager
def kept() -> Iterator[None]:
    """What is imported meanwhile stays as long as the process does: nobody looks for garbage among it, and all else
    that there is by then, any more, not even at the process's end."""
    with uncollected():
        yield
        gc.freeze()


SELDOM = 100_000
"""Objects that are made, and not freed, between two looks; Python's own number is 700."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Of a process that has hundreds of thousands of objects for long, and makes few that only have each other: each
    look takes it a while, and finds next to nothing."""
    before = gc.get_threshold()
    gc.set_threshold(SELDOM, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)

"""Where a script is when it asks, and how it is told what it does wrong. Knows nothing of what it asks."""

import os
import random
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import numpy as np

from hpcrl.errors import UserCodeError
from hpcrl.stacks import Frame

HERE = str(Path(__file__).parent)
NOT_SHOWN = (HERE, str(Path(HERE).parent / "plugins.py"), "<frozen importlib")
"""Files, by the beginnings of their names, whose frames nobody needs who reads of an error in a script."""
LIBRARY = str(Path(traceback.__file__).parent)
SHOWN = 10_000
"""Characters of an error that are told."""


def place(frame: FrameType | None = None) -> str:
    """`file.py:12`: the innermost line outside this room and Python's own library; "" where all are in them. Of the
    caller's frame, or of this one."""
    frame = frame or sys._getframe(1)
    while frame is not None and not _is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _is_users(file: str) -> bool:
    return not file.startswith((HERE, "<frozen")) and (not file.startswith(LIBRARY) or "site-packages" in file)


def misuse(text: str, advice: str = "", at: str = "") -> UserCodeError:
    """What a script does wrong, with the line where it does, or, where none is the user's, `at`."""
    where = place() or at
    return UserCodeError(f"{where}: {text}" if where else text, advice)


def is_shown(file: str) -> bool:
    """Whether a frame in this file says something of a script."""
    return not file.startswith(NOT_SHOWN) and file != threading.__file__


def this_thread() -> tuple[int, int]:
    """Whoever runs this: process and thread, whose numbers a forked process may have too."""
    return os.getpid(), threading.get_ident()


def generators() -> tuple[object, ...]:
    """Where the generators of this process are."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    return random.getstate(), kind, np.asarray(keys).tobytes(), *rest


@contextmanager
def generators_kept() -> Iterator[None]:
    """What is drawn within from the generators of `random` and `numpy.random` leaves them where they were."""
    theirs, numpys = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(theirs)
        np.random.set_state(numpys)


def told(error: BaseException) -> str:
    """An error of the user's code with its own frames."""
    every = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in every if is_shown(frame.filename)]
    text = "".join((*traceback.format_list(frames), *traceback.format_exception_only(error)))
    return text.rstrip()[-SHOWN:].encode(errors="backslashreplace").decode()


def keep_exits() -> None:
    """Have `os._exit` in the user's code raise SystemExit, which says where it was, as sys.exit does. For this process;
    one that the user's code forks ends as it wants to."""
    leave, own = os._exit, os.getpid()

    def kept(status: int) -> NoReturn:
        caller = sys._getframe(1)
        if os.getpid() == own and Frame(caller.f_code.co_filename, caller.f_lineno, "").is_users:
            raise SystemExit(f"os._exit({status!r})")
        leave(status)

    os._exit = kept


def kind_of(value: object) -> str:
    """The type of a value as its user knows it: `list`, `numpy.bool`."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    return kind.__qualname__ if package in ("builtins", "__main__", "hpcrl") else f"{package}.{kind.__qualname__}"


def refuse_uncallable(function: object, doing: str) -> None:
    """Raises UserCodeError where this is no function."""
    if not callable(function):
        raise misuse(
            f"{doing} takes a function, and this is of the type {kind_of(function)}.",
            "Give the function itself, not what it returns.",
        )


def listed(names: object) -> str:
    """Names in words."""
    found = [str(name) for name in names]  # type: ignore[attr-defined]
    return ", ".join(found) if found else "none"

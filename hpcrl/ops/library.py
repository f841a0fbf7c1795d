"""The compiled operations, if this installation has them: a shared library beside this file, called through ctypes.

It is loaded by its path, as it is no Python module and so needs no headers of Python's to be built. What it computes,
the numpy version of each operation computes to the same bits: whether there is one changes the speed alone.
"""

import ctypes
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

NAME = "_compiled"


@cache
def compiled() -> ctypes.CDLL | None:
    """The library; None where it was not built, or not for this machine."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(NAME + suffix)
        if path.is_file():
            try:
                return ctypes.CDLL(str(path))
            except OSError:
                return None
    return None

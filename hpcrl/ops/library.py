"""The compiled operations, if this installation has them: shared libraries beside this file, called through ctypes.

They are loaded by their paths, as they are no Python modules and so need no headers of Python's to be built. What they
compute, the version of each operation in numpy or torch computes to the same bits: they change the speed alone.
"""

import ctypes
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path


def compiled() -> ctypes.CDLL | None:
    """What runs on a CPU; None where it was not built, or not for this machine."""
    return _library("_compiled")


def compiled_for_cuda() -> ctypes.CDLL | None:
    """What runs on GPUs; None where there was no nvcc."""
    return _library("_cuda")


@cache
def _library(name: str) -> ctypes.CDLL | None:
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(name + suffix)
        if path.is_file():
            try:
                return ctypes.CDLL(str(path))
            except OSError:
                return None
    return None

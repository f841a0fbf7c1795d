"""The compiled operations, if this installation has them: shared libraries beside this file, called through ctypes.

They are loaded by their paths, as they are no Python modules and so need no headers of Python's to be built. What they
compute, the version of each operation in numpy or torch computes to the same bits: they change the speed alone.
"""

import ctypes
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

VERSION = 4
"""Of the functions that run on a CPU and of their parameters, as csrc/version.cpp has it."""


def compiled() -> ctypes.CDLL | None:
    """What runs on a CPU; None where it was not built, or not for this machine, or from another version of csrc."""
    library = _library("_compiled")
    return library if library is not None and _version_of(library) == VERSION else None


def compiled_for_cuda() -> ctypes.CDLL | None:
    """What runs on GPUs; None where there was no nvcc."""
    return _library("_cuda")


def _version_of(library: ctypes.CDLL) -> int:
    """0 of a library that is older than all versions."""
    version = getattr(library, "hpcrl_version", None)
    return 0 if version is None else int(version())


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

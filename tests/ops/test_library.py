"""A compiled library is used if it is of this version of csrc, and of no other."""

import ctypes
import re
from pathlib import Path

import pytest

from hpcrl.ops import library


class Built:
    """A library that says this version of itself."""

    def __init__(self, version: int) -> None:
        self.hpcrl_version = lambda: version


@pytest.mark.parametrize(
    ("built", "is_used"),
    [
        (Built(library.VERSION), True),
        (Built(library.VERSION - 1), False),
        (Built(library.VERSION + 1), False),
        (ctypes.CDLL(None), False),
        (None, False),
    ],
    ids=["this", "older", "newer", "without", "none"],
)
def test_a_library_of_another_version_is_none(monkeypatch: pytest.MonkeyPatch, built: object, is_used: bool) -> None:
    monkeypatch.setattr(library, "_library", lambda _name: built)
    assert library.compiled() is (built if is_used else None)


def test_python_and_csrc_have_one_version() -> None:
    source = (Path(__file__).parents[2] / "csrc" / "version.cpp").read_text()
    assert re.findall(r"return (\d+);", source) == [str(library.VERSION)]

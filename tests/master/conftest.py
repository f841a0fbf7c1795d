"""What the tests of disturbed runs share."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chaos import Remains, remains, toy_experiment, whole_run
from support.in_memory import FAST, tmp_path, tmp_path_factory

__all__ = ["folder", "tmp_path", "tmp_path_factory", "undisturbed"]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        yield Path(name)


@pytest.fixture(scope="session")
def undisturbed() -> Remains:
    """What an undisturbed run leaves."""
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        return remains(whole_run(Path(name), toy_experiment()))

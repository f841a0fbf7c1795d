"""What the tests of disturbed runs share."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chaos import Remains, remains, toy_experiment, whole_run
from support.in_memory import FAST, Folders, folder_in_memory


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        yield Path(name)


@pytest.fixture(scope="session")
def undisturbed() -> Remains:
    """What an undisturbed run leaves."""
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        return remains(whole_run(Path(name), toy_experiment()))


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture(scope="session")
def tmp_path_factory() -> Iterator[Folders]:
    with folder_in_memory() as folder:
        yield Folders(folder)

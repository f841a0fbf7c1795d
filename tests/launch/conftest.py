"""Runs that tests of this folder make are in memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.in_memory import Folders, folder_in_memory


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture(scope="session")
def tmp_path_factory() -> Iterator[Folders]:
    with folder_in_memory() as folder:
        yield Folders(folder)

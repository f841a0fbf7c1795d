"""Each test's folder is in memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.in_memory import folder_in_memory


@pytest.fixture
def root() -> Iterator[Path]:
    with folder_in_memory() as where:
        yield where

"""A place in memory where there is one: thousands of fsyncs on a disk would take minutes."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def root() -> Iterator[Path]:
    shared_memory = Path("/dev/shm")
    where = Path(tempfile.mkdtemp(prefix="hpcrl-durable-", dir=shared_memory if shared_memory.is_dir() else None))
    yield where
    shutil.rmtree(where, ignore_errors=True)

"""A folder in memory where there is such a place: thousands of fsyncs and renames on a disk would take minutes.

Processes are killed in tests, the machine never is: what they wrote is there afterwards in either.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SHARED_MEMORY = Path("/dev/shm")
NEEDED_BYTES = 2 * 2**30
"""A container's may be of 64 MiB."""
FAST = SHARED_MEMORY if SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > NEEDED_BYTES else None


@contextlib.contextmanager
def folder_in_memory() -> Iterator[Path]:
    """Gone afterwards, whatever still writes to it."""
    made = Path(tempfile.mkdtemp(prefix="hpcrl-test-", dir=FAST))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


class Folders:
    """Does what tests ask of pytest's `tmp_path_factory`, below one folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def mktemp(self, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._root))


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In the place of pytest's, for a conftest.py to import."""
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture(scope="session")
def tmp_path_factory() -> Iterator[Folders]:
    """The same."""
    with folder_in_memory() as folder:
        yield Folders(folder)

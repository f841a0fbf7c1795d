"""What the tests of disturbed runs share."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chaos import Remains, create_run, finish, outputs, remains, toy_experiment

FAST = Path("/dev/shm") if Path("/dev/shm").is_dir() else None


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        yield Path(name)


@pytest.fixture(scope="session")
def undisturbed() -> Remains:
    """What an undisturbed run leaves."""
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        run = create_run(Path(name, "run"), toy_experiment())
        assert finish(run) == [0], outputs(run)
        return remains(run)

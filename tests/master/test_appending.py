"""Lines that are written behind the work come in the order in which they were told, and what fails there is raised."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chaos import create_run, toy_experiment

from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Stopped
from hpcrl.durable.rundir import RunDirectory
from hpcrl.master.attempt_files import AttemptFiles, begin_attempt

CHANGES = {"actor_train": "actor", "critic_train": "critic"}


class Disk:
    """One that writes when it may, or never."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.error: OSError | None = None

    def __call__(self, point: str) -> None:
        if point == "journal.before":
            assert self.may.wait(30)
            if self.error is not None:
                raise self.error


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def files(tmp_path: Path, disk: Disk) -> Iterator[AttemptFiles]:
    run = create_run(tmp_path / "run", toy_experiment())
    disk.may.set()
    files = begin_attempt(RunDirectory(run.root, disk), CHANGES, "first", 2, compacts=False)
    yield files
    disk.error = None
    disk.may.set()
    files.close()


def reasons(tmp_path: Path) -> list[str]:
    lines = read_history(RunDirectory(tmp_path / "run")).lines
    return [line.event.reason for line in lines if isinstance(line.event, Stopped)]


def test_lines_are_written_beside_what_the_caller_does_and_in_order(
    tmp_path: Path, disk: Disk, files: AttemptFiles
) -> None:
    disk.may.clear()
    first = files.append_behind([Stopped("one"), Stopped("two")])
    assert not first.is_done and reasons(tmp_path) == []
    disk.may.set()
    files.append([Stopped("three")])
    assert first.is_done
    first.finish()
    files.append_behind([Stopped("four")]).finish()
    assert reasons(tmp_path) == ["one", "two", "three", "four"]


def test_what_fails_behind_is_raised_by_whoever_waits_for_it(disk: Disk, files: AttemptFiles) -> None:
    disk.error = OSError(5, "broken")
    failing = files.append_behind([Stopped("one")])
    with pytest.raises(OSError, match="broken"):
        failing.finish()
    with pytest.raises(OSError, match="broken"):
        files.append([Stopped("two")])

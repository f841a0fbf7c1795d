import os
from pathlib import Path

import pytest
from support.kills import FullAt, KillAt, in_child

from hpcrl.durable.append_log import AppendLog, DiskFullError
from hpcrl.durable.files import Files, no_fault
from hpcrl.errors import InternalError


def test_log_keeps_its_lines_in_order_and_has_one_writer(root: Path) -> None:
    log = Files(root).open_log(root / "log", "j")
    log.append([b"1\n", b"2\n"])
    log.append([b"3\n"])
    assert (root / "log").read_bytes() == b"1\n2\n3\n"
    with pytest.raises(FileExistsError):
        Files(root).open_log(root / "log", "j")
    log.close()


def test_log_takes_nothing_more_after_an_error(root: Path) -> None:
    log = Files(root, FullAt(2)).open_log(root / "log", "j")
    log.append([b"1\n"])
    with pytest.raises(DiskFullError, match="it needs 2 bytes"):
        log.append([b"2\n"])
    with pytest.raises(InternalError, match="failed before"):
        log.append([b"3\n"])
    assert (root / "log").read_bytes() == b"1\n"
    log.close()


def test_log_on_a_really_full_device_says_so() -> None:
    log = AppendLog(Path("/dev/full"), os.open("/dev/full", os.O_WRONLY), no_fault, "j", True)
    with pytest.raises(DiskFullError, match="/dev/full"):
        log.append([b"1\n"])
    log.close()


def test_killed_append_leaves_a_prefix_of_whole_lines(root: Path) -> None:
    def append(path: Path, number: int) -> None:
        log = Files(root, KillAt(number)).open_log(path, "j")
        log.append([b"1\n"])
        log.append([b"2\n", b"3\n"])

    lengths = []
    for number in range(4):
        path = root / f"log{number}"
        assert in_child(lambda n=number, p=path: append(p, n)) == -9
        lengths.append(len(path.read_bytes()))
    assert lengths == [0, 2, 2, 6]

"""What only processes and a real directory can show."""

import errno
import os
import stat
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.names import LaggingListing

from hpcrl.errors import InternalError
from hpcrl.nameresolve.base import NameEntryExistsError, NameEntryNotFoundError, NameTimeoutError
from hpcrl.nameresolve.filesystem import STALE_RETRIES, DirectoryCalls, FilesystemStore

CONTEND = """
import sys
from pathlib import Path
from hpcrl.nameresolve.base import NameEntryExistsError
from hpcrl.nameresolve.filesystem import FilesystemStore

root, me, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
store = FilesystemStore(root)
print("ready", flush=True)
sys.stdin.readline()
won = []
for number in range(rounds):
    try:
        store.add(f"claim/{number}", me)
    except NameEntryExistsError:
        continue
    won.append(str(number))
print(" ".join(won), flush=True)
"""


def start(script: str, *arguments: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_processes_that_add_the_same_keys_have_one_winner_each(tmp_path: Path) -> None:
    rounds = 300
    processes = [start(CONTEND, str(tmp_path), f"process {number}", str(rounds)) for number in range(3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    won = {f"process {number}": process.communicate()[0].split() for number, process in enumerate(processes)}
    assert Counter(key for keys in won.values() for key in keys) == Counter(map(str, range(rounds)))
    store = FilesystemStore(tmp_path)
    assert all(store.get(f"claim/{key}") == name for name, keys in won.items() for key in keys)


def test_directories_are_0700_and_files_0600_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = FilesystemStore(tmp_path / "names")
        store.add("k", "v")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "names").stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "names").iterdir()} == {0o600}


class FlakyCalls(DirectoryCalls):
    """A file server that says ESTALE to every second call, and loses the file under a reader now and then."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.calls = 0

    def flake(self) -> None:
        self.calls += 1
        if self.calls % 2:
            raise OSError(errno.ESTALE, "Stale file handle")

    def list(self) -> list[str]:
        self.flake()
        return super().list()

    def read(self, name: str) -> bytes:
        self.flake()
        return super().read(name)

    def link(self, source: str, target: str) -> None:
        self.flake()
        super().link(source, target)


def test_stale_file_handles_are_tried_again(tmp_path: Path) -> None:
    store = FilesystemStore(tmp_path, FlakyCalls(tmp_path))
    store.add("a", "1")
    store.add("a/b", "2")
    assert store.get("a") == "1"
    assert FilesystemStore(tmp_path, FlakyCalls(tmp_path)).list() == {"a": "1", "a/b": "2"}


class AlwaysStale(DirectoryCalls):
    tries = 0

    def list(self) -> list[str]:
        self.tries += 1
        raise OSError(errno.ESTALE, "Stale file handle")


def test_a_handle_that_stays_stale_is_an_error_after_bounded_tries(tmp_path: Path) -> None:
    calls = AlwaysStale(tmp_path)
    with pytest.raises(OSError, match="Stale"):
        FilesystemStore(tmp_path, calls).get("a")
    assert calls.tries == STALE_RETRIES + 1


class LosesTheReply(DirectoryCalls):
    """The server links, the reply is lost, and the client's own repetition is answered with EEXIST."""

    def link(self, source: str, target: str) -> None:
        super().link(source, target)
        super().link(source, target)


def test_a_link_whose_reply_was_lost_counts_as_won(tmp_path: Path) -> None:
    store = FilesystemStore(tmp_path, LosesTheReply(tmp_path))
    store.add("k", "v")
    assert store.get("k") == "v"
    with pytest.raises(NameEntryExistsError):
        FilesystemStore(tmp_path).add("k", "w")


def test_a_key_that_is_not_there_is_never_looked_up_only_listed(tmp_path: Path) -> None:
    class Unreadable(DirectoryCalls):
        def read(self, name: str) -> bytes:
            raise AssertionError(f"looked up {name}")

    with pytest.raises(NameEntryNotFoundError):
        FilesystemStore(tmp_path, Unreadable(tmp_path)).get("k")


def test_a_listing_that_lags_delays_a_reader_and_no_writer(tmp_path: Path) -> None:
    FilesystemStore(tmp_path).add("k", "v")
    calls = LaggingListing(tmp_path, lag=5)
    behind = FilesystemStore(tmp_path, calls)
    with pytest.raises(NameEntryExistsError):
        behind.add("k", "w")
    with pytest.raises(NameEntryNotFoundError):
        behind.get("k")
    with pytest.raises(NameTimeoutError):
        behind.wait("k", 0.0)
    assert behind.list() == {}
    assert behind.wait("k", 10) == "v"
    assert calls.listings == 6


def test_an_entry_is_one_file_and_nothing_else_stays(tmp_path: Path) -> None:
    store = FilesystemStore(tmp_path)
    store.add("nodes/000001-77.0", "v")
    store.add("master", "v")
    with pytest.raises(NameEntryExistsError):
        store.add("master", "w")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["master.name", "nodes+000001-77.0.name"]


def test_a_foreign_file_is_ignored_and_a_broken_entry_is_named(tmp_path: Path) -> None:
    store = FilesystemStore(tmp_path)
    (tmp_path / ".nfs0000001").write_text("")
    (tmp_path / "notes.txt").write_text("")
    assert store.list() == {}
    (tmp_path / "k.name").write_text("torn")
    with pytest.raises(InternalError, match=r"k\.name is not an entry"):
        store.get("k")


def test_a_full_disk_is_named_with_path_and_bytes_and_leaves_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = FilesystemStore(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=rf"No space left on device for \d+ bytes: '{tmp_path}/") as caught:
        store.add("nodes/0", "here")
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []

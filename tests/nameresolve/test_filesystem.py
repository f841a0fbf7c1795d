"""What only processes and a real directory can show."""

import errno
import os
import stat
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from hpcrl.errors import InternalError
from hpcrl.nameresolve.base import NameEntryExistsError, NameEntryNotFoundError
from hpcrl.nameresolve.filesystem import DirectoryCalls, FilesystemStore

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
        store.add(f"claim/{number}", me, delete_on_exit=False)
    except NameEntryExistsError:
        continue
    won.append(str(number))
print(" ".join(won), flush=True)
"""

OWN = """
import sys, time
from pathlib import Path
from hpcrl.nameresolve.filesystem import FilesystemStore

store = FilesystemStore(Path(sys.argv[1]))
store.add("worker", "alive", ttl_s=0.3)
store.keep_alive()
print("ready", flush=True)
time.sleep(60)
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


def test_a_killed_owners_key_expires_and_a_frozen_owners_too(tmp_path: Path) -> None:
    for how in ("SIGKILL", "SIGSTOP"):
        owner = start(OWN, str(tmp_path / how))
        observer = FilesystemStore(tmp_path / how)
        until = time.monotonic() + 0.6
        while time.monotonic() < until:
            assert observer.get("worker") == "alive"
            time.sleep(0.02)
        subprocess.run(["kill", f"-{how.removeprefix('SIG')}", str(owner.pid)], check=True)
        deadline = time.monotonic() + 5
        while observer.find_subtree(""):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        observer.add("worker", "the next one")
        owner.kill()
        owner.communicate()
        assert observer.get("worker") == "the next one"


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
    store = FilesystemStore(tmp_path, calls=FlakyCalls(tmp_path))
    store.add("a", "1")
    store.add("a", "2", replace=True)
    store.add("a/b", "3")
    assert store.get("a") == "2"
    assert FilesystemStore(tmp_path, calls=FlakyCalls(tmp_path)).get_subtree("a") == ["2", "3"]
    store.close()
    assert FilesystemStore(tmp_path).find_subtree("") == []


class AlwaysStale(DirectoryCalls):
    def list(self) -> list[str]:
        raise OSError(errno.ESTALE, "Stale file handle")


def test_a_handle_that_stays_stale_is_an_error_after_bounded_tries(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(OSError, match="Stale"):
        FilesystemStore(tmp_path, calls=AlwaysStale(tmp_path)).get("a")
    assert time.monotonic() - started < 3


class ReplacedUnderTheReader(DirectoryCalls):
    """Another process replaces the key, twice, between this reader's listing and its read."""

    def __init__(self, root: Path, other: FilesystemStore) -> None:
        super().__init__(root)
        self.other = other
        self.times = 2

    def read(self, name: str) -> bytes:
        if self.times:
            self.times -= 1
            for _ in range(3):
                self.other.add("k", f"{self.times} left", replace=True)
        return super().read(name)


def test_a_key_that_is_replaced_while_it_is_read_gives_the_newer_value(tmp_path: Path) -> None:
    other = FilesystemStore(tmp_path)
    for _ in range(3):
        other.add("k", "first", replace=True)
    reader = FilesystemStore(tmp_path, calls=ReplacedUnderTheReader(tmp_path, other))
    assert reader.get("k") == "0 left"


class LosesTheReply(DirectoryCalls):
    """The server links, the reply is lost, and the client's own repetition is answered with EEXIST."""

    def link(self, source: str, target: str) -> None:
        super().link(source, target)
        super().link(source, target)


def test_a_link_whose_reply_was_lost_counts_as_won(tmp_path: Path) -> None:
    store = FilesystemStore(tmp_path, calls=LosesTheReply(tmp_path))
    store.add("k", "v")
    assert store.get("k") == "v"
    with pytest.raises(NameEntryExistsError):
        FilesystemStore(tmp_path).add("k", "w")


class WakesUpLate(DirectoryCalls):
    """Another process moves the key on by many generations between this one's listing and its link."""

    def __init__(self, root: Path, other: FilesystemStore) -> None:
        super().__init__(root)
        self.other = other
        self.asleep = False

    def link(self, source: str, target: str) -> None:
        if self.asleep:
            self.asleep = False
            for number in range(6):
                self.other.add("k", f"other {number}", replace=True)
        super().link(source, target)


def test_a_process_that_sleeps_between_listing_and_link_never_wins_over_newer_generations(tmp_path: Path) -> None:
    other = FilesystemStore(tmp_path)
    calls = WakesUpLate(tmp_path, other)
    late = FilesystemStore(tmp_path, calls=calls)
    late.add("k", "late", ttl_s=10)
    calls.asleep = True
    late.add("k", "late again", replace=True)
    assert FilesystemStore(tmp_path).get("k") == "late again"
    other.add("k", "other", replace=True)
    calls.asleep = True
    late.close()
    assert FilesystemStore(tmp_path).get("k") == "other 5"


def test_a_key_that_is_not_there_is_never_looked_up_only_listed(tmp_path: Path) -> None:
    class Unreadable(DirectoryCalls):
        def read(self, name: str) -> bytes:
            raise AssertionError(f"looked up {name}")

    with pytest.raises(NameEntryNotFoundError):
        FilesystemStore(tmp_path, calls=Unreadable(tmp_path)).get("k")


def test_generations_do_not_pile_up(tmp_path: Path) -> None:
    store = FilesystemStore(tmp_path)
    store.add("k", "v", ttl_s=60)
    for _ in range(50):
        store.touch("k")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["k@0", "k@49", "k@50"]


def test_a_foreign_file_is_ignored_and_a_broken_entry_is_named(tmp_path: Path) -> None:
    store = FilesystemStore(tmp_path)
    (tmp_path / ".nfs0000001").write_text("")
    (tmp_path / "notes.txt").write_text("")
    assert store.find_subtree("") == []
    (tmp_path / "k@0").write_text("torn")
    with pytest.raises(InternalError, match="k@0 is not an entry"):
        store.get("k")


def test_a_full_disk_is_named_with_path_and_bytes_and_leaves_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_file: int, _content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = FilesystemStore(tmp_path)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match=rf"No space left on device for \d+ bytes: '{tmp_path}/") as caught:
        store.add("nodes/0", "here")
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []

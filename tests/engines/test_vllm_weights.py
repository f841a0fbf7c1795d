"""Files that are read while they are written, and a writer that goes before its time."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcrl.engines.servers.vllm_weights import LOCK, arriving, writing

FILES = ["a", "b", "c"]
WRITER = """
import sys, time
from pathlib import Path
from hpcrl.engines.servers.vllm_weights import writing
folder = Path(sys.argv[1])
with writing(folder):
    print("locked", flush=True)
    sys.stdin.readline()
    (folder / "a").touch()
    time.sleep(600)
"""


def read_meanwhile(folder: Path) -> tuple[list[str], Callable[[], None]]:
    """Who reads, beside this thread: what it has got so far, and how to wait until it has ended."""
    found: list[str] = []

    def read() -> None:
        for path in arriving(folder, FILES):
            found.append(path.name)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()

    def ended() -> None:
        thread.join(10)
        assert not thread.is_alive()

    return found, ended


def seen(found: list[str], names: list[str]) -> bool:
    deadline = time.monotonic() + 30
    while found != names and time.monotonic() < deadline:
        time.sleep(0.001)
    return found == names


def test_files_are_read_as_they_come_and_in_their_order(tmp_path: Path) -> None:
    with writing(tmp_path):
        found, ended = read_meanwhile(tmp_path)
        for number, name in enumerate(FILES):
            assert seen(found, FILES[:number])
            (tmp_path / name).touch()
    ended()
    assert found == FILES
    assert (tmp_path / LOCK).stat().st_mode & 0o077 == 0


def test_nobody_waits_for_a_writer_that_gave_up(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no room"), writing(tmp_path):
        found, ended = read_meanwhile(tmp_path)
        (tmp_path / "a").touch()
        assert seen(found, ["a"])
        raise OSError("no room")
    ended()
    assert found == ["a"]


def test_nobody_waits_for_a_writer_that_was_killed(tmp_path: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdin=-1, stdout=-1, text=True)
    assert writer.stdin is not None and writer.stdout is not None
    assert writer.stdout.readline() == "locked\n"
    found, ended = read_meanwhile(tmp_path)
    print(file=writer.stdin, flush=True)
    assert seen(found, ["a"])
    os.kill(writer.pid, signal.SIGKILL)
    ended()
    assert found == ["a"]
    writer.communicate()


def test_what_is_there_is_read_after_its_writer_has_gone(tmp_path: Path) -> None:
    with writing(tmp_path):
        for name in FILES:
            (tmp_path / name).touch()
    assert [path.name for path in arriving(tmp_path, FILES)] == FILES

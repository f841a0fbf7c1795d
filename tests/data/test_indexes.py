"""Indexes that nobody keeps leave nothing behind, however their process ends."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hpcrl.data.indexes import PREFIX, ScratchIndexes
from hpcrl.scratch import NEW_S

KILLED = """
import os, signal, sys, tempfile
tempfile.tempdir = sys.argv[1]
from hpcrl.data.indexes import ScratchIndexes
indexes = ScratchIndexes()
indexes.keep("name", [b"content"])
os.kill(os.getpid(), signal.SIGKILL)
"""


def aged(folder: Path) -> None:
    old = folder.stat().st_mtime - 2 * NEW_S
    os.utime(folder, (old, old))


def test_what_a_killed_process_has_left_goes_with_the_next_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    (abandoned,) = tmp_path.glob(f"{PREFIX}*")
    living = ScratchIndexes()
    kept = living.keep("name", [b"living"])
    assert abandoned.is_dir(), "one that is new may have an owner who does not hold it yet"
    aged(abandoned)
    aged(kept.parent)
    other = ScratchIndexes()
    other.keep("name", [b"other"])
    assert not abandoned.exists() and kept.read_bytes() == b"living"
    del living, other
    assert list(tmp_path.iterdir()) == []

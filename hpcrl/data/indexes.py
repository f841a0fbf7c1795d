"""Indexes that nobody keeps: of a run that is not there yet, or of settings that are only tried."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcrl.data.contents import Contents
from hpcrl.data.inputs import fingerprints

PREFIX = "hpcrl-index-"
"""What the names of their folders begin with."""
NEW_S = 60.0
"""A folder that is younger may not be held yet."""


def remove_abandoned() -> None:
    """Remove the folders that nobody holds: whoever made them was killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime < NEW_S:
                continue
            held = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(held)


def _remove(folder: Path, held: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(held)


class ScratchIndexes:
    """Fulfils `Indexes` in a folder that goes with this object; `below` finds those that were made before."""

    def __init__(
        self, contents: Contents | None = None, below: Callable[[str], Path | None] = lambda name: None
    ) -> None:
        self._contents = contents or Contents()
        self._below = below
        self._folder: Path | None = None
        self.made: dict[str, Path] = {}
        """By name."""

    def fingerprint(self, setting: str, files: Sequence[Path]) -> str:
        return fingerprints({setting: list(files)}, self._contents)[setting]

    def confirm(self, setting: str, files: Sequence[Path]) -> None:
        """Nothing else is expected of them."""

    def find(self, name: str) -> Path | None:
        return self.made.get(name) or self._below(name)

    def keep(self, name: str, chunks: Sequence[bytes | memoryview]) -> Path:
        if self._folder is None:
            remove_abandoned()
            self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))
            held = os.open(self._folder, os.O_RDONLY)
            fcntl.flock(held, fcntl.LOCK_SH)
            weakref.finalize(self, _remove, self._folder, held)
        path = self._folder / name
        with path.open("wb") as file:
            file.writelines(chunks)
        self.made[name] = path
        return path

    def discard(self, name: str) -> None:
        """A new one hides it."""

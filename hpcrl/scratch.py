"""Folders of a node that are of no use to anybody else, and go with the process that made them."""

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterable
from pathlib import Path

NEW_S = 60.0
"""A folder that is younger may not be held yet."""
ELSEWHERE = "elsewhere"
"""The file in a folder that names what is not in it and goes with it."""


class ScratchFolder:
    """A new folder, for its owner alone, in $TMPDIR if not elsewhere. It goes with this object; one whose process was
    killed goes when the next with its prefix is made."""

    def __init__(self, prefix: str, where: Path | None = None) -> None:
        remove_abandoned(prefix, where)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=where))
        held = os.open(self.path, os.O_RDONLY)
        with contextlib.suppress(OSError):  # without locks nobody removes it but its process
            fcntl.flock(held, fcntl.LOCK_SH)
        self._end = weakref.finalize(self, _remove, self.path, held)

    def remove(self) -> None:
        self._end()


def goes_with(folder: Path, files: Iterable[Path]) -> None:
    """These are elsewhere, and are removed with a scratch folder. Whoever finds them may say so."""
    if lines := [f"{file}\n" for file in files]:
        with open(folder / ELSEWHERE, "a") as listed:
            listed.write("".join(lines))


def remove_abandoned(prefix: str, where: Path | None = None, new_s: float = NEW_S) -> None:
    """Remove this user's folders that nobody holds and that are not new: whoever made them was killed."""
    for folder in (where or Path(tempfile.gettempdir())).glob(f"{glob.escape(prefix)}*"):
        with contextlib.suppress(OSError):
            found = folder.stat()
            if found.st_uid != os.getuid() or time.time() - found.st_mtime < new_s:
                continue
            held = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _clear(folder)
            finally:
                os.close(held)


def _remove(folder: Path, held: int) -> None:
    _clear(folder)
    os.close(held)


def _clear(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for file in (folder / ELSEWHERE).read_text().splitlines():
            Path(file).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)

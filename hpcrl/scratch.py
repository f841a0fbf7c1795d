"""Folders of a node that are of no use to anybody else, and go with the process that made them."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path

NEW_S = 60.0
"""A folder that is younger may not be held yet."""


class ScratchFolder:
    """A new folder, for its owner alone, in $TMPDIR if not elsewhere. It goes with this object; one whose process was
    killed goes when the next with its prefix is made."""

    def __init__(self, prefix: str, where: Path | None = None) -> None:
        remove_abandoned(prefix, where)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=where))
        held = os.open(self.path, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_SH)
        self._end = weakref.finalize(self, _remove, self.path, held)

    def remove(self) -> None:
        self._end()


def remove_abandoned(prefix: str, where: Path | None = None) -> None:
    """Remove the folders that nobody holds: whoever made them was killed."""
    for folder in (where or Path(tempfile.gettempdir())).glob(f"{prefix}*"):
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

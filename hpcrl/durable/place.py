"""The directory of a run: whether one is there, or can be made there, which is asked before anything is; making it."""

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcrl.durable.exclusive import DIRECTORY_MODE, sync_directory
from hpcrl.durable.paths import refuse_unusable
from hpcrl.errors import ConfigurationError

_NO_FOLDER = (errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG)


def refuse_place(root: Path) -> None:
    """Raise ConfigurationError where no run can be made, as far as it can be known beforehand."""
    refuse_unusable(root)
    folder = nearest_folder(root)
    if not folder.is_dir():
        raise _cannot_be_made(root, f"{folder} is no folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _cannot_be_made(root, f"you may not write to {folder}")
    if folder == root:
        _refuse_taken(root)


def make_place(root: Path) -> None:
    """Make the directory, with those above it. Raises as `refuse_place`."""
    refuse_unusable(root)
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(DIRECTORY_MODE, exist_ok=True)
    except OSError as error:
        raise _cannot_be_made(root, str(error.strerror)) from error
    _refuse_taken(root)
    root.chmod(DIRECTORY_MODE)
    sync_directory(root.parent)


def refuse_no_run(root: Path, document: str, listing: Callable[[Path], Sequence[str]]) -> None:
    """Raise ConfigurationError where a directory that somebody names as a run's is none, or lacks this document."""
    try:
        names, why = listing(root), "it has no run.json" if root.exists() else "it does not exist"
    except OSError as error:
        if error.errno not in _NO_FOLDER:
            raise
        names, why = (), "it is a file" if root.is_file() else str(error.strerror)
    if document not in names:
        raise ConfigurationError([f"{root} is no run: {why}."], "Name the directory of one; `hpcrl list` shows them.")


def nearest_folder(path: Path) -> Path:
    """The path itself or, of those above it, the lowest that is there."""
    return next(each for each in (path, *path.parents) if os.path.lexists(each))


def _refuse_taken(root: Path) -> None:
    if taken := sorted(os.listdir(root)):
        raise ConfigurationError(
            [f"cannot create a run in {root}: it already contains {taken[0]}."], "Choose another --run-dir."
        )


def _cannot_be_made(root: Path, why: str) -> ConfigurationError:
    return ConfigurationError([f"{root} cannot be made: {why}."], "Choose another --run-dir or run_root.")

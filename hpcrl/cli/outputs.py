"""What a command line names to be written. Where nothing can be written is the user's mistake; a full disk is not."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from hpcrl.durable.place import nearest_folder
from hpcrl.errors import ConfigurationError

MISTAKES = frozenset(
    {
        errno.EACCES,
        errno.EEXIST,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)


@contextmanager
def writable(option: str, path: str | Path) -> Iterator[Path]:
    """The path, to be written to. Raises ConfigurationError where the operating system lets nobody write there."""
    try:
        yield Path(path)
    except OSError as error:
        if error.errno not in MISTAKES:
            error.filename = f"{option} {path}"  # of a write that fails the system names no file
            raise
        raise _refused(option, path, _why(Path(path), error)) from None


@contextmanager
def written(option: str, path: str | Path) -> Iterator[IO[bytes]]:
    """A file that takes its name once it is whole and on disk: whatever happens before that, the name has what it had.

    A link, and what is no file, such as a pipe, are written to. Raises ConfigurationError as `writable` does.
    """
    with writable(option, path) as place:
        if place.is_symlink() or (place.exists() and not place.is_file()):
            with open(place, "wb") as file:
                yield file
            return
        part = place.with_name(f".hpcrl-{os.getpid()}.part")  # no longer than a name may be
        try:
            with open(part, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, place)
        finally:
            part.unlink(missing_ok=True)


def try_out(option: str, path: str | Path) -> None:
    """Raise ConfigurationError where `written` would do so: before it is known what to write, which takes long."""
    with writable(option, path) as place:
        if place.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not place.exists() or place.is_file():
            part = place.with_name(f".hpcrl-{os.getpid()}.part")
            part.touch()
            part.unlink()


def refuse_unwritable(option: str, path: Path) -> None:
    """Raise ConfigurationError where a folder cannot be made, as far as it can be known beforehand."""
    there = nearest_folder(path.absolute())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = f"you may not write to {there}" if there.is_dir() else f"{there} is no folder"
        raise _refused(option, path, why)


def _refused(option: str, path: str | Path, why: str) -> ConfigurationError:
    return ConfigurationError([f"{option} {path} cannot be written: {why}."], "Name a place where you can write.")


def _why(path: Path, error: OSError) -> str:
    there = nearest_folder(path.absolute())
    if there.is_dir() and there not in (path.absolute(), path.absolute().parent):
        return f"there is no folder {path.parent}"
    return f"{there} is no folder" if not there.is_dir() and there != path.absolute() else str(error.strerror)

"""Names that are taken once: links and renames to a name that must be free, and directories flushed behind them."""

import errno
import os
import shutil
from pathlib import Path

from hpcrl.errors import InternalError

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
NO_LINKS = {errno.EPERM, errno.EXDEV, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}
"""What a filesystem says that has no hard links, or no more of them."""
_NO_DIRECTORY_FSYNC = {errno.EINVAL, errno.ENOTSUP}


class AlreadyPublishedError(InternalError):
    """A name was to be published a second time; published files are never replaced."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is already published, and published files are never replaced")


def sync_directory(path: Path) -> None:
    """Flush the names in a directory. Filesystems that cannot do it make them durable by themselves."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_FSYNC:
            raise
    finally:
        os.close(descriptor)


def sync_tree(root: Path) -> None:
    """Flush every file and directory below and including `root`, with our modes."""
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            path.chmod(FILE_MODE)
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        os.chmod(folder, DIRECTORY_MODE)
        sync_directory(Path(folder))


def link_exclusively(temporary: Path, path: Path) -> None:
    """Give a temporary file its final name, which must be free.

    On a network disk the answer to a link that succeeded can get lost and the repeated request fail: two names then.
    """
    try:
        os.link(temporary, path, follow_symlinks=False)
    except OSError as error:
        if os.stat(temporary).st_nlink == 2:
            return
        if error.errno == errno.EEXIST:
            raise AlreadyPublishedError(path) from error
        if error.errno not in NO_LINKS:
            raise
        _rename_exclusively(temporary, path)


def _rename_exclusively(temporary: Path, path: Path) -> None:
    """Without hard links a rename has to do. A name has one writer, so nobody can take it after the check."""
    if os.path.lexists(path):
        raise AlreadyPublishedError(path)
    os.rename(temporary, path)


def link_again(source: Path, path: Path) -> None:
    """A hard link; a name that is there is kept where it is the same file, else replaced."""
    try:
        os.link(source, path, follow_symlinks=False)
    except FileExistsError:
        if os.path.samestat(os.lstat(source), os.lstat(path)):
            return
        os.unlink(path)
        os.link(source, path, follow_symlinks=False)


def rename_folder(temporary: Path, path: Path) -> bool:
    """Rename to a name that is free; False, with the temporary folder gone, if another has taken it."""
    try:
        os.rename(temporary, path)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        shutil.rmtree(temporary, ignore_errors=True)
        return False
    return True

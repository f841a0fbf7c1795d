"""Logs that are only appended to, by one writer; and what to say when the disk is full."""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hpcrl.errors import InternalError

_FULL = {errno.ENOSPC, errno.EDQUOT}


class DiskFullError(InternalError):
    """A write found no room. Nothing half-written counts; the run can be resumed once there is room."""

    def __init__(self, path: Path, needed_bytes: int | None) -> None:
        needed = "its size is not known" if needed_bytes is None else f"it needs {needed_bytes} bytes"
        super().__init__(
            f"no room for {path}: {needed}, {_free_bytes(path)} bytes are free (or a quota is used up).",
            "Free some space, or lower control.keep_checkpoints if it is above 2, and resume the run.",
        )


class AppendLog:
    """An append-only log with one writer. Knows lines of bytes, not what they say."""

    def __init__(self, path: Path, descriptor: int, fault: Callable[[str], None], point: str, flush: bool) -> None:
        self.path = path
        self._descriptor = descriptor
        self._fault = fault
        self._point = point
        self._flush = flush
        self._broken = False

    def append(self, lines: Sequence[bytes]) -> None:
        """Write the lines, in this order, with one write, and one fsync if the log is a durable one.

        After an error the end of the file is unknown (a torn line, or lines that never reached the disk), and whatever
        came behind them would not be believed: the log takes nothing more.
        """
        if self._broken:
            raise InternalError(f"{self.path} failed before and takes no more lines.", "Resume the run.")
        data = b"".join(lines)
        try:
            self._fault(f"{self._point}.before")
            write_all(self._descriptor, memoryview(data))
            if self._flush:
                os.fsync(self._descriptor)
            self._fault(f"{self._point}.after")
        except OSError as error:
            self._broken = True
            if error.errno in _FULL:
                raise DiskFullError(self.path, len(data)) from error
            raise

    def flush(self) -> None:
        """Bring to the disk what a log holds that is no durable one."""
        with naming_full_disk(self.path, None):
            os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


@contextlib.contextmanager
def naming_full_disk(path: Path, needed_bytes: int | None) -> Iterator[None]:
    """Raise DiskFullError where the system says that there is no room for `path`."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFullError(path, needed_bytes) from error
        raise


def write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _free_bytes(path: Path) -> int | str:
    try:
        return shutil.disk_usage(path.parent).free
    except OSError:
        return "an unknown number of"

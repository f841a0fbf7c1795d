"""A file that is written, and brought to disk, beside the making of its bytes. Publishing it is the caller's part."""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import numpy as np

from hpcrl.durable.exclusive import FILE_MODE

FLUSHED_BYTES = 32 << 20
"""After so many the disk is given what is there, so that little is left for it in the end."""


class WrittenBehind:
    """Holds two pieces at most: one that is being written, and one that waits. Raises OSError in a later call, or when
    it is left: where it is left without one, all bytes are in the file and on disk."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        self._pool = ThreadPoolExecutor(2)
        self._writing: Future[None] | None = None
        self._flushing: Future[None] | None = None
        self._unflushed = 0

    def write(self, piece: np.ndarray) -> None:
        """Of a contiguous array, which must not change until the next call, or until `wait`, has ended."""
        self.wait()
        data = piece.reshape(-1).view(np.uint8).data
        self._writing = self._pool.submit(self._write, data)
        self._unflushed += len(data)
        if self._unflushed >= FLUSHED_BYTES and (self._flushing is None or self._flushing.done()):
            self._flush()

    def wait(self) -> None:
        """Until nothing of what was given is held any more."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def __enter__(self) -> "WrittenBehind":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.wait()
                self._flush()
                assert self._flushing is not None
                self._flushing.result()
        finally:
            self._pool.shutdown()
            os.close(self._file)

    def _write(self, data: memoryview) -> None:
        while data:
            data = data[os.write(self._file, data) :]

    def _flush(self) -> None:
        if self._flushing is not None:
            self._flushing.result()
        self._flushing = self._pool.submit(os.fdatasync, self._file)
        self._unflushed = 0

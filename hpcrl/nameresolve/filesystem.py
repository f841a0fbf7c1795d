"""A name store in one directory of a filesystem that all nodes share (NFS, Lustre, GPFS, a local disk).

A generation of a key is one file, `<name>@<generation>`, written under another name and given its own with link(2),
which is atomic and exclusive on all of them. No file is ever changed, locked or looked up before a listing has shown
it, so neither attribute caches nor remembered failed look-ups can hide it for long. Nothing here is meant to outlive
the attempt, so the directory is not fsynced.
"""

import errno
import hashlib
import os
import random
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote

import msgspec

from hpcrl.errors import InternalError
from hpcrl.nameresolve.base import NameStore, Record

T = TypeVar("T")

LONGEST_PLAIN_NAME = 200
"""Bytes; a file name has at most 255, and the generation takes some."""
KEPT_OF_A_LONG_NAME = 150
STALE_RETRIES = 5
STALE_PAUSE_S = 0.02


class DirectoryCalls:
    """The metadata operations of one directory, each one system call that a file server sees."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def list(self) -> list[str]:
        return os.listdir(self.root)

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def create(self, name: str, content: bytes) -> None:
        """All of the content, or no file. The OSError of a full disk names the path and the bytes."""
        path = self.root / name
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, content)
            os.fsync(file)
        except OSError as error:
            os.unlink(path)
            raise OSError(error.errno, f"{error.strerror} for {len(content)} bytes", str(path)) from error
        finally:
            os.close(file)

    def link(self, source: str, target: str) -> None:
        os.link(self.root / source, self.root / target)

    def link_count(self, name: str) -> int:
        return os.stat(self.root / name).st_nlink

    def unlink(self, name: str) -> None:
        os.unlink(self.root / name)


class FilesystemStore(NameStore):
    """The keys of one directory, which it makes (0700) where it is missing; its files are 0600."""

    def __init__(
        self, root: Path, clock: Callable[[], float] = time.monotonic, calls: DirectoryCalls | None = None
    ) -> None:
        super().__init__(clock)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._calls = calls or DirectoryCalls(root)

    def __str__(self) -> str:
        return str(self._calls.root)

    def _name(self, key: str) -> str:
        name = quote(key, safe="/").replace("~", "%7E").replace("/", "+")
        if len(name) <= LONGEST_PLAIN_NAME:
            return name
        return f"{name[:KEPT_OF_A_LONG_NAME]}~{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}"

    def _key(self, name: str) -> str | None:
        return None if "~" in name else unquote(name.replace("+", "/"))

    def _scan(self) -> dict[str, int]:
        latest: dict[str, int] = {}
        for file in _unless_stale(self._calls.list):
            name, at, generation = file.rpartition("@")
            if at and generation.isdecimal():
                latest[name] = max(int(generation), latest.get(name, 0))
        return latest

    def _load(self, name: str, generation: int) -> Record | None:
        file = f"{name}@{generation}"
        try:
            content = _unless_stale(lambda: self._calls.read(file))
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(content, type=Record)
        except msgspec.DecodeError as error:
            raise InternalError(
                f"{self._calls.root / file} is not an entry of a name store ({error}). Nothing else may write there."
            ) from error

    def _link(self, name: str, generation: int, record: Record) -> bool:
        draft = f"~{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex}"
        self._calls.create(draft, msgspec.json.encode(record))
        try:
            return self._linked(draft, f"{name}@{generation}")
        finally:
            self._calls.unlink(draft)

    def _linked(self, draft: str, file: str) -> bool:
        """Whether the draft now has the other name too; the count of links knows it even if the reply was lost."""
        try:
            _unless_stale(lambda: self._calls.link(draft, file))
        except FileExistsError:
            return self._calls.link_count(draft) == 2
        return True

    def _unlink(self, name: str, generation: int) -> None:
        try:
            self._calls.unlink(f"{name}@{generation}")
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise


def _unless_stale(operation: Callable[[], T]) -> T:
    """Try again where a server says that its handle is stale: the next try looks the path up anew."""
    for attempt in range(STALE_RETRIES):
        try:
            return operation()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            time.sleep(STALE_PAUSE_S * 2**attempt * random.uniform(0.5, 1.0))
    return operation()

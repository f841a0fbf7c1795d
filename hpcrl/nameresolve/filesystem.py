"""A name store in one directory of a filesystem that all nodes share (NFS, Lustre, GPFS, a local disk).

A key is one file, written under another name and given its own with link(2), which is atomic and exclusive on all of
them. No file is ever changed, removed, locked or looked up before a listing has shown it, so neither attribute caches
nor remembered failed look-ups can hide it for long. Nothing here outlives the attempt, so the directory is not fsynced.
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
from urllib.parse import quote

import msgspec

from hpcrl.nameresolve.base import DamagedEntryError, NameStore

T = TypeVar("T")

SUFFIX = ".name"
LONGEST_PLAIN_NAME = 200
"""Bytes; a file name has at most 255."""
KEPT_OF_A_LONG_NAME = 150
STALE_RETRIES = 5
STALE_PAUSE_S = 0.02


class Entry(msgspec.Struct, frozen=True):
    """What the file of a key holds. Written and read by `FilesystemStore` only."""

    key: str
    value: str


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
            with os.fdopen(file, "wb") as opened:
                opened.write(content)
                opened.flush()
                os.fsync(file)
        except OSError as error:
            path.unlink()
            raise OSError(error.errno, f"{error.strerror} for {len(content)} bytes", str(path)) from error

    def link(self, source: str, target: str) -> None:
        os.link(self.root / source, self.root / target)

    def link_count(self, name: str) -> int:
        return os.stat(self.root / name).st_nlink

    def unlink(self, name: str) -> None:
        os.unlink(self.root / name)


class FilesystemStore(NameStore):
    """The keys of one directory, which it makes (0700) where it is missing; its files are 0600."""

    def __init__(self, root: Path, calls: DirectoryCalls | None = None) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._calls = calls or DirectoryCalls(root)

    def __str__(self) -> str:
        return str(self._calls.root)

    def _create(self, key: str, value: str) -> bool:
        draft = f"~{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex}"
        self._calls.create(draft, msgspec.json.encode(Entry(key, value)))
        try:
            _unless_stale(lambda: self._calls.link(draft, file_name(key)))
        except FileExistsError:
            # The count of links knows that the draft has the other name too, even if the server's reply was lost.
            return self._calls.link_count(draft) == 2
        finally:
            self._calls.unlink(draft)
        return True

    def _read(self, key: str) -> str | None:
        name = file_name(key)
        return self._load(name).value if name in self._names() else None

    def _entries(self) -> dict[str, str]:
        entries = map(self._load, self._names())
        return {entry.key: entry.value for entry in entries}

    def _names(self) -> list[str]:
        return [name for name in _unless_stale(self._calls.list) if name.endswith(SUFFIX)]

    def _load(self, name: str) -> Entry:
        try:
            return msgspec.json.decode(_unless_stale(lambda: self._calls.read(name)), type=Entry)
        except (msgspec.DecodeError, OSError) as error:
            raise DamagedEntryError(
                f"{self._calls.root / name} is not an entry of a name store ({error}). Nothing else may write there."
            ) from error


def file_name(key: str) -> str:
    """Another one for every key, legible where it fits; the key itself is in the file."""
    name = quote(key, safe="/").replace("~", "%7E").replace("/", "+")
    if len(name) > LONGEST_PLAIN_NAME:
        name = f"{name[:KEPT_OF_A_LONG_NAME]}~{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}"
    return name + SUFFIX


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

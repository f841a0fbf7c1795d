"""Every file operation of a run: publish whole, append with one fsync, verify, link, remove.

Knows bytes, names and the disk; knows nothing of what the files mean. Modes are set explicitly (files 0600, directories
0700), whatever the umask is. `fault(point)` is called at named points, where a test raises OSError or kills itself.
"""

import contextlib
import errno
import functools
import itertools
import os
import secrets
import shutil
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from hpcrl.durable.append_log import AppendLog, naming_full_disk, write_all
from hpcrl.durable.exclusive import (
    DIRECTORY_MODE,
    FILE_MODE,
    NO_LINKS,
    AlreadyPublishedError,
    link_again,
    link_exclusively,
    rename_folder,
    sync_directory,
    sync_tree,
)
from hpcrl.errors import ExitCode, InternalError

Fault = Callable[[str], None]

TEMPORARY_SUFFIX = ".tmp"
PIECE_BYTES = 8 << 20
BESIDE_BYTES = 4 << 20
STALE_RETRIES = 5
STALE_PAUSE_S = 0.05


class FileRef(msgspec.Struct, frozen=True):
    """A published file: name relative to the run directory, size in bytes and CRC-32 of its content."""

    name: str
    size: int
    crc32: int


class DamagedFileError(InternalError):
    """A file is missing, or is not what was published; the next attempt computes its content again."""

    exit_code = ExitCode.REQUEUE

    def __init__(self, damage: str) -> None:
        self.damage = damage
        super().__init__(f"{damage}.", "Resume the run: what was in it is computed again.")


def no_fault(_point: str) -> None:
    """Outside tests nothing happens at a fault point."""


class Files:
    """The file operations of one run directory. Holds no state but a counter, so any thread may use it."""

    def __init__(self, root: Path, fault: Fault = no_fault) -> None:
        self.root = root
        self.fault = fault
        # Host and pid alone would repeat after a reboot, or in a container whose first process is always number 1.
        self._token = f"{socket.gethostname()}.{secrets.token_hex(4)}"
        self._counter = itertools.count()

    def publish(self, path: Path, data: bytes, point: str) -> FileRef:
        """Make `path` appear whole and durable with this content, or not at all."""
        return self.publish_chunks(path, [data], point)

    def publish_chunks(self, path: Path, chunks: Sequence[bytes | memoryview], point: str) -> FileRef:
        """As `publish`, for content in several buffers of bytes; none of them is copied."""
        size = sum(len(chunk) for chunk in chunks)
        with naming_full_disk(path, size), self._temporary(path) as temporary:
            with _crc32(chunks, size) as crc32:
                self._write(temporary, chunks, f"{point}.write")
            self.fault(f"{point}.synced")
            link_exclusively(temporary, path)
            temporary.unlink(missing_ok=True)
            sync_directory(path.parent)
            self.fault(f"{point}.published")
        return FileRef(self.name(path), size, crc32())

    def publish_alike(self, path: Path, chunks: Sequence[bytes | memoryview], point: str) -> FileRef:
        """As `publish_chunks`, where somebody else may have published this very content under this name before, or was
        killed as he did.

        Raises AlreadyPublishedError where it is another.
        """
        for name in self.listing(path.parent):
            if name.startswith(f".{path.name}.") and is_temporary(name):
                self.remove_tree(path.with_name(name))
        try:
            return self.publish_chunks(path, chunks, point)
        except AlreadyPublishedError:
            size = sum(len(chunk) for chunk in chunks)
            with _crc32(chunks, size) as crc32:
                ref = FileRef(self.name(path), size, crc32())
            if self.damage(ref):
                raise
            sync_directory(path.parent)  # whoever linked it may have been killed before it did
            return ref

    def publish_folder(self, path: Path, attempt: int, write: Callable[[Path], None], point: str) -> bool:
        """Have `write` fill a folder that appears whole as `path`; False if a folder of that name was there already.

        All files in the folder get mode 0600 and are flushed to disk, whoever wrote them. The temporary folder carries
        the attempt's number, as `path` does not, so that a later attempt knows whose litter it is.
        """
        if path.name in self.listing(path.parent):
            return False
        self.directory(path.parent)
        temporary = self._temporary_name(path.with_name(f"{path.name}.a{attempt:03d}"))
        with naming_full_disk(path, None), self._removed_on_error(temporary):
            os.mkdir(temporary, DIRECTORY_MODE)
            self.fault(f"{point}.write")
            write(temporary)
            return self.publish_prepared(temporary, path, point)

    def publish_prepared(self, temporary: Path, path: Path, point: str) -> bool:
        """Make a folder that was filled beside `path` appear whole under that name; False, and it is gone, if there
        was one. Its files are flushed and get mode 0600, whoever wrote them."""
        sync_tree(temporary)
        self.fault(f"{point}.synced")
        published = rename_folder(temporary, path)
        sync_directory(path.parent)
        self.fault(f"{point}.published")
        return published

    def replace(self, path: Path, data: bytes) -> None:
        """Make `path`, which nobody else writes, have this content in the place of what it had. Whole, but not durable:
        for what is out of date soon, and what nobody decides by."""
        temporary = path.with_name(f".{path.name}{TEMPORARY_SUFFIX}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._removed_on_error(temporary):
            descriptor = os.open(temporary, flags, FILE_MODE)
            try:
                write_all(descriptor, memoryview(data))
            finally:
                os.close(descriptor)
            os.replace(temporary, path)

    def open_log(self, path: Path, point: str, flush: bool = True) -> AppendLog:
        """A new log, to be written by the caller alone. FileExistsError if somebody has begun it before.

        Without `flush` its lines reach the disk when the system likes: for what the journal can tell again.
        """
        self.directory(path.parent)
        with naming_full_disk(path, None):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(path, flags, FILE_MODE)
            os.fchmod(descriptor, FILE_MODE)
            sync_directory(path.parent)
        return AppendLog(path, descriptor, self.fault, point, flush)

    def link(self, ref: FileRef, path: Path, point: str) -> FileRef:
        """Give a verified file a second name, `path`; copies where the filesystem has no hard links.

        The caller flushes the directory afterwards (`sync_directory`), once for all links. FileNotFoundError where
        the file is gone. A name that is there already is kept if it is this very file and replaced if it is not:
        only the caller's own earlier try can have made it.
        """
        self.directory(path.parent)
        with naming_full_disk(path, ref.size):
            try:
                link_again(self.path(ref), path)
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                self._copy(ref, path, point)
            self.fault(f"{point}.linked")
        return msgspec.structs.replace(ref, name=self.name(path))

    def unlink(self, path: Path, point: str) -> bool:
        """Remove one name; False if it is gone already. Not flushed: a name that comes back is only litter."""
        self.fault(f"{point}.unlink")
        try:
            os.unlink(path)
        except FileNotFoundError:
            return False
        return True

    def remove_tree(self, path: Path) -> None:
        """Remove a file, or a folder with all that it holds; what cannot be removed stays."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
            return
        with contextlib.suppress(OSError):
            path.unlink()

    def remove_directory(self, path: Path) -> bool:
        """Remove a directory if it is empty; whether it is gone."""
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def make_directory(self, path: Path) -> None:
        """Make one directory, durably. FileExistsError if it exists: of several who try, one succeeds."""
        with naming_full_disk(path, None):
            os.mkdir(path, DIRECTORY_MODE)
            os.chmod(path, DIRECTORY_MODE)
            sync_directory(path.parent)

    def directory(self, path: Path) -> Path:
        """The directory, made with its parents where it is missing. FileNotFoundError where the run itself is gone."""
        if not path.is_dir():
            if path == self.root:
                raise FileNotFoundError(errno.ENOENT, "the run was moved or removed", str(path))
            self.directory(path.parent)
            with contextlib.suppress(FileExistsError):
                self.make_directory(path)
        return path

    def read(self, path: Path, start: int = 0, stop: int | None = None) -> bytes:
        """The content, or what of it lies there. FileNotFoundError where it is missing."""
        return b"".join(self.pieces(path, start, stop))

    def read_document(self, path: Path, advice: str, start: int = 0, stop: int | None = None) -> bytes:
        """The same of a file that has to be there. Raises InternalError where it cannot be read."""
        try:
            return self.read(path, start, stop)
        except OSError as error:
            raise InternalError(f"{unreadable(path, error)}.", advice) from error

    def read_verified(self, ref: FileRef) -> bytes:
        """The content as it was published. DamagedFileError where it is anything else."""
        try:
            data = self.read(self.path(ref))
        except OSError as error:
            raise DamagedFileError(unreadable(ref.name, error)) from error
        if damage := _difference(ref, len(data), zlib.crc32(data)):
            raise DamagedFileError(damage)
        return data

    def damage(self, ref: FileRef) -> str | None:
        """What is wrong with a file, by size and CRC; None if nothing is."""
        size = crc32 = 0
        try:
            for piece in self.pieces(self.path(ref)):
                size += len(piece)
                crc32 = zlib.crc32(piece, crc32)
        except OSError as error:
            return unreadable(ref.name, error)
        return _difference(ref, size, crc32)

    def drop_cached(self, ref: FileRef) -> None:
        """Have what is read next of a file come from the disk, and not from this machine's memory, where it can."""
        with contextlib.suppress(OSError), open(self.path(ref), "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def listing(self, path: Path) -> list[str]:
        """The names in a directory, sorted; none if it does not exist. A stale handle is looked up anew."""
        for retries in itertools.count(1):
            try:
                return sorted(os.listdir(path))
            except FileNotFoundError:
                return []
            except OSError as error:
                if error.errno != errno.ESTALE or retries > STALE_RETRIES:
                    raise
            time.sleep(STALE_PAUSE_S * retries)
        raise AssertionError("the loop ends by returning or raising")

    def name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def path(self, ref: FileRef) -> Path:
        return self.root / ref.name

    def pieces(self, path: Path, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The content, or what of it lies there, in pieces.

        On a network disk a handle can go stale, and a name be remembered as missing: then it is opened again.
        """
        offset, retries = start, 0
        while True:
            try:
                with open(path, "rb", buffering=0) as file:
                    file.seek(offset)
                    while piece := file.read(PIECE_BYTES if stop is None else min(PIECE_BYTES, stop - offset)):
                        offset += len(piece)
                        yield piece
                return
            except OSError as error:
                retries += 1
                if retries > STALE_RETRIES or not self._is_stale(path, error):
                    raise
            time.sleep(STALE_PAUSE_S * retries)

    def _is_stale(self, path: Path, error: OSError) -> bool:
        """Whether the server would know better: listing a directory asks it anew."""
        return error.errno == errno.ESTALE or (error.errno == errno.ENOENT and path.name in self.listing(path.parent))

    def _write(self, path: Path, chunks: Sequence[bytes | memoryview], point: str) -> None:
        """Write and flush a new file."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        try:
            os.fchmod(descriptor, FILE_MODE)
            self.fault(point)
            for chunk in chunks:
                for start in range(0, len(chunk), PIECE_BYTES):
                    write_all(descriptor, memoryview(chunk)[start : start + PIECE_BYTES])
                    self.fault(point)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _copy(self, ref: FileRef, path: Path, point: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        copied = self.publish_chunks(path, [self.read(self.path(ref))], point)
        if copied.crc32 != ref.crc32:
            raise FileNotFoundError(errno.ENOENT, "changed while it was copied", ref.name)

    @contextlib.contextmanager
    def _temporary(self, path: Path) -> Iterator[Path]:
        """A name beside `path` that no other process uses; gone afterwards unless the process was killed."""
        self.directory(path.parent)
        temporary = self._temporary_name(path)
        with self._removed_on_error(temporary):
            yield temporary

    def _temporary_name(self, path: Path) -> Path:
        unique = f"{self._token}.{os.getpid()}.{next(self._counter)}"
        return path.with_name(f".{path.name}.{unique}{TEMPORARY_SUFFIX}")

    @contextlib.contextmanager
    def _removed_on_error(self, temporary: Path) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.remove_tree(temporary)
            raise


def is_temporary(name: str) -> bool:
    return name.startswith(".") and name.endswith(TEMPORARY_SUFFIX)


def unreadable(name: str | Path, error: OSError) -> str:
    """What is wrong with a file that cannot be read."""
    if error.errno == errno.ENOENT:
        return f"{name} is missing"
    return f"{name} cannot be read: {os.strerror(error.errno) if error.errno else error}"


def _difference(ref: FileRef, size: int, crc32: int) -> str | None:
    """How a file differs from what was published."""
    if size != ref.size:
        return f"{ref.name} has {size} bytes, {ref.size} were published"
    if crc32 != ref.crc32:
        return f"{ref.name} has CRC {crc32:08x}, it was published with {ref.crc32:08x}"
    return None


@contextlib.contextmanager
def _crc32(chunks: Sequence[bytes | memoryview], size: int) -> Iterator[Callable[[], int]]:
    """The checksum of a content, taken beside what is done meanwhile where that is worth a thread."""

    def checksum() -> int:
        return functools.reduce(lambda crc32, chunk: zlib.crc32(chunk, crc32), chunks, 0)

    if size < BESIDE_BYTES:
        yield checksum
        return
    with ThreadPoolExecutor(1) as beside:
        yield beside.submit(checksum).result

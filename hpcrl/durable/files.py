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

from hpcrl.errors import InternalError

Fault = Callable[[str], None]

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
TEMPORARY_SUFFIX = ".tmp"
PIECE_BYTES = 8 << 20
BESIDE_BYTES = 4 << 20
STALE_RETRIES = 5
STALE_PAUSE_S = 0.05
_FULL = {errno.ENOSPC, errno.EDQUOT}
_NO_LINKS = {errno.EPERM, errno.EXDEV, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}
_NO_DIRECTORY_FSYNC = {errno.EINVAL, errno.ENOTSUP}


class FileRef(msgspec.Struct, frozen=True):
    """A published file: name relative to the run directory, size in bytes and CRC-32 of its content."""

    name: str
    size: int
    crc32: int


class DiskFullError(InternalError):
    """A write found no room. Nothing half-written counts; the run can be resumed once there is room."""

    def __init__(self, path: Path, needed_bytes: int | None) -> None:
        needed = "its size is not known" if needed_bytes is None else f"it needs {needed_bytes} bytes"
        super().__init__(
            f"no room for {path}: {needed}, {_free_bytes(path)} bytes are free (or a quota is used up). "
            "Free some space, or lower control.keep_checkpoints, and resume the run."
        )


class AlreadyPublishedError(InternalError):
    """A name was to be published a second time; published files are never replaced."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is already published, and published files are never replaced")


class DamagedFileError(InternalError):
    """A file is missing, or is not what was published; resuming the run computes its content again."""

    def __init__(self, damage: str) -> None:
        self.damage = damage
        super().__init__(f"{damage}. Resume the run: what was in it is computed again.")


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
        with self._naming_full_disk(path, size), self._temporary(path) as temporary:
            with _crc32(chunks, size) as crc32:
                self._write(temporary, chunks, f"{point}.write")
            self.fault(f"{point}.synced")
            _link_exclusively(temporary, path)
            temporary.unlink(missing_ok=True)
            sync_directory(path.parent)
            self.fault(f"{point}.published")
        return FileRef(self.name(path), size, crc32())

    def publish_folder(self, path: Path, attempt: int, write: Callable[[Path], None], point: str) -> bool:
        """Have `write` fill a folder that appears whole as `path`; False if a folder of that name was there already.

        All files in the folder get mode 0600 and are flushed to disk, whoever wrote them. The temporary folder carries
        the attempt's number, as `path` does not, so that a later attempt knows whose litter it is.
        """
        if path.name in self.listing(path.parent):
            return False
        self.directory(path.parent)
        temporary = self._temporary_name(path.with_name(f"{path.name}.a{attempt:03d}"))
        with self._naming_full_disk(path, None), self._removed_on_error(temporary):
            os.mkdir(temporary, DIRECTORY_MODE)
            self.fault(f"{point}.write")
            write(temporary)
            _sync_tree(temporary)
            self.fault(f"{point}.synced")
            published = _rename_folder(temporary, path)
            sync_directory(path.parent)
            self.fault(f"{point}.published")
        return published

    def open_log(self, path: Path, point: str, flush: bool = True) -> "AppendLog":
        """A new log, to be written by the caller alone. FileExistsError if somebody has begun it before.

        Without `flush` its lines reach the disk when the system likes: for what the journal can tell again.
        """
        self.directory(path.parent)
        with self._naming_full_disk(path, None):
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
        with self._naming_full_disk(path, ref.size):
            try:
                _link_again(self.path(ref), path)
            except OSError as error:
                if error.errno not in _NO_LINKS:
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
        with self._naming_full_disk(path, None):
            os.mkdir(path, DIRECTORY_MODE)
            os.chmod(path, DIRECTORY_MODE)
            sync_directory(path.parent)

    def directory(self, path: Path) -> Path:
        """The directory, made with its parents where it is missing."""
        if not path.is_dir():
            self.directory(path.parent)
            with contextlib.suppress(FileExistsError):
                self.make_directory(path)
        return path

    def read(self, path: Path) -> bytes:
        """The whole content. FileNotFoundError where it is missing."""
        return b"".join(self._pieces(path))

    def read_verified(self, ref: FileRef) -> bytes:
        """The content as it was published. DamagedFileError where it is anything else."""
        try:
            data = self.read(self.path(ref))
        except OSError as error:
            raise DamagedFileError(_unreadable(ref, error)) from error
        if damage := _difference(ref, len(data), zlib.crc32(data)):
            raise DamagedFileError(damage)
        return data

    def damage(self, ref: FileRef) -> str | None:
        """What is wrong with a file, by size and CRC; None if nothing is."""
        size = crc32 = 0
        try:
            for piece in self._pieces(self.path(ref)):
                size += len(piece)
                crc32 = zlib.crc32(piece, crc32)
        except OSError as error:
            return _unreadable(ref, error)
        return _difference(ref, size, crc32)

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

    def _pieces(self, path: Path) -> Iterator[bytes]:
        """The content in pieces.

        On a network disk a handle can go stale, and a name be remembered as missing: then it is opened again.
        """
        offset = retries = 0
        while True:
            try:
                with open(path, "rb", buffering=0) as file:
                    file.seek(offset)
                    while piece := file.read(PIECE_BYTES):
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
                    _write_all(descriptor, memoryview(chunk)[start : start + PIECE_BYTES])
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

    @contextlib.contextmanager
    def _naming_full_disk(self, path: Path, needed_bytes: int | None) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _FULL:
                raise DiskFullError(path, needed_bytes) from error
            raise


class AppendLog:
    """An append-only log with one writer. Knows lines of bytes, not what they say."""

    def __init__(self, path: Path, descriptor: int, fault: Fault, point: str, flush: bool) -> None:
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
            raise InternalError(f"{self.path} failed before and takes no more lines; resume the run")
        data = b"".join(lines)
        try:
            self._fault(f"{self._point}.before")
            _write_all(self._descriptor, memoryview(data))
            if self._flush:
                os.fsync(self._descriptor)
            self._fault(f"{self._point}.after")
        except OSError as error:
            self._broken = True
            if error.errno in _FULL:
                raise DiskFullError(self.path, len(data)) from error
            raise

    def close(self) -> None:
        os.close(self._descriptor)


def is_temporary(name: str) -> bool:
    return name.startswith(".") and name.endswith(TEMPORARY_SUFFIX)


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


def _unreadable(ref: FileRef, error: OSError) -> str:
    return f"{ref.name} is missing" if error.errno == errno.ENOENT else f"{ref.name} cannot be read: {error.strerror}"


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


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _link_exclusively(temporary: Path, path: Path) -> None:
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
        if error.errno not in _NO_LINKS:
            raise
        _rename_exclusively(temporary, path)


def _rename_exclusively(temporary: Path, path: Path) -> None:
    """Without hard links a rename has to do. A name has one writer, so nobody can take it after the check."""
    if os.path.lexists(path):
        raise AlreadyPublishedError(path)
    os.rename(temporary, path)


def _link_again(source: Path, path: Path) -> None:
    """A hard link; a name that is there is kept where it is the same file, else replaced."""
    try:
        os.link(source, path, follow_symlinks=False)
    except FileExistsError:
        if os.path.samestat(os.lstat(source), os.lstat(path)):
            return
        os.unlink(path)
        os.link(source, path, follow_symlinks=False)


def _rename_folder(temporary: Path, path: Path) -> bool:
    """Rename to a name that is free; False, with the temporary folder gone, if another has taken it."""
    try:
        os.rename(temporary, path)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        shutil.rmtree(temporary, ignore_errors=True)
        return False
    return True


def _sync_tree(root: Path) -> None:
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


def _free_bytes(path: Path) -> int | str:
    try:
        return shutil.disk_usage(path.parent).free
    except OSError:
        return "an unknown number of"

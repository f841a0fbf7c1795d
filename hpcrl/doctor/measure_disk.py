"""What a filesystem does with the operations that hpcrl relies on, tried in one directory by one process."""

import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path

from hpcrl.doctor.measurements import DiskMeasurements
from hpcrl.durable.exclusive import DIRECTORY_MODE, FILE_MODE, sync_directory

FSYNCS = 12
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def measure_disk(folder: Path) -> DiskMeasurements:
    """Try everything in a new directory inside `folder`, a temporary one itself; it is removed again."""
    work = folder / f"disk-{secrets.token_hex(6)}"
    os.mkdir(work, DIRECTORY_MODE)
    try:
        failed: dict[str, str] = {}

        def attempt(name: str, trial: Callable[[Path], bool]) -> bool:
            try:
                return trial(work)
            except OSError as error:
                failed[name] = error.strerror or str(error)
                return False

        return DiskMeasurements(
            path=str(folder.parent),
            filesystem=filesystem_of(folder, Path("/proc/mounts").read_text()),
            free_bytes=shutil.disk_usage(folder).free,
            link_exclusive=attempt("link", _link_is_exclusive),
            create_exclusive=attempt("O_EXCL", _create_is_exclusive),
            mkdir_exclusive=attempt("mkdir", _mkdir_is_exclusive),
            rename_replaces=attempt("rename", _rename_replaces),
            modes_kept=attempt("chmod", _modes_are_kept),
            fsync_s=_timed(work, failed),
            clock_ahead_s=_server_clock_ahead(work),
            failed=failed,
        )
    finally:
        shutil.rmtree(work, ignore_errors=True)


def filesystem_of(path: Path, mounts: str) -> str:
    """The type of the filesystem that a path is on, from the text of /proc/mounts; the last mount of a place counts."""
    found = ("", "unknown")
    for line in mounts.splitlines():
        _, place, kind, *_ = [*line.split(" "), "", ""]
        place = place.replace("\\040", " ")
        if path.resolve().is_relative_to(place or "/nowhere") and len(place) >= len(found[0]):
            found = (place, kind)
    return found[1]


def make(path: Path, content: bytes = b"") -> None:
    """A new file. FileExistsError if the name is taken."""
    descriptor = os.open(path, _NEW, FILE_MODE)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refused(action: Callable[[], None]) -> bool:
    try:
        action()
    except FileExistsError:
        return True
    return False


def _link_is_exclusive(work: Path) -> bool:
    make(work / "source")
    os.link(work / "source", work / "linked", follow_symlinks=False)
    linked = os.stat(work / "source").st_nlink == 2
    return linked and _refused(lambda: os.link(work / "source", work / "linked", follow_symlinks=False))


def _create_is_exclusive(work: Path) -> bool:
    make(work / "created")
    return _refused(lambda: make(work / "created"))


def _mkdir_is_exclusive(work: Path) -> bool:
    os.mkdir(work / "made")
    return _refused(lambda: os.mkdir(work / "made"))


def _rename_replaces(work: Path) -> bool:
    make(work / "old", b"old")
    make(work / "new", b"new")
    os.rename(work / "new", work / "old")
    return (work / "old").read_bytes() == b"new" and not (work / "new").exists()


def _modes_are_kept(work: Path) -> bool:
    """Asked for explicitly, as hpcrl does, whatever the umask is."""
    os.mkdir(work / "private")
    os.chmod(work / "private", DIRECTORY_MODE)
    make(work / "secret")
    os.chmod(work / "secret", FILE_MODE)
    modes = [stat.S_IMODE(os.stat(work / name).st_mode) for name in ("private", "secret")]
    return modes == [DIRECTORY_MODE, FILE_MODE]


def _timed(work: Path, failed: dict[str, str]) -> tuple[float, ...]:
    """A small file published whole and durably, again and again."""
    times = []
    try:
        for number in range(FSYNCS):
            begun = time.perf_counter()
            make(work / f"draft-{number}", b"x" * 4096)
            os.rename(work / f"draft-{number}", work / f"durable-{number}")
            sync_directory(work)
            times.append(time.perf_counter() - begun)
    except OSError as error:
        failed["fsync"] = error.strerror or str(error)
    return tuple(times)


def _server_clock_ahead(work: Path) -> float | None:
    """By the time that the server gives to a file which is made now."""
    path = work / "clock"
    try:
        before = time.time()
        make(path, b"x")
        after = time.time()
        changed = os.stat(path).st_mtime
    except OSError:
        return None
    # Between the two the server can have stamped it at any time: within them, nothing is known to differ.
    return 0.0 if before - 0.05 <= changed <= after + 0.05 else changed - (before + after) / 2

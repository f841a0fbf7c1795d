"""What can be seen from here of a process that wrote down who it is, and of the disk under a run."""

import os
from pathlib import Path

from hpcrl.durable.records import Claim


def is_running(claim: Claim) -> bool:
    """Whether the process of a claim of this host is alive: the same pid, start time and boot."""
    try:
        if boot_id() != claim.boot_id:
            return False
        fields = Path(f"/proc/{claim.pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(fields[19]) == claim.pid_started and fields[0] not in ("Z", "X")


def boot_id() -> str:
    """Of this host since it was started. Raises FileNotFoundError where the kernel does not say it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def disk_trouble(root: Path) -> str:
    """Why nothing can be written there, if it can be seen from here; else empty."""
    try:
        disk = os.statvfs(root)
    except OSError as error:
        return f"its directory cannot be read, {error.strerror}"
    if disk.f_flag & os.ST_RDONLY:
        return "its disk is read-only"
    return "" if disk.f_bavail and disk.f_favail else "its disk is full"

"""Whether the kernel has killed in this job for want of memory: Slurm's own word for it comes too late for a script."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

_JOB = re.compile(r"(/.*?/job_\d+)(?:/|$)")
COUNTER = "memory.oom_control"
_V2 = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills(cgroups: str, root: Path = Path("/sys/fs/cgroup")) -> int:
    """How often, from the text of /proc/self/cgroup and the job's group below `root`; 0 where nobody counts."""
    return sum(_count(path) for folder in _job_folders(cgroups, root) for path in _counters(folder))


def _job_folders(cgroups: str, root: Path) -> Iterator[Path]:
    """The job's own group: `0::/…/job_7/step_batch/…` with version 2, `9:memory:/slurm/uid_0/job_7/…` with 1."""
    for line in cgroups.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        found = _JOB.match(path)
        if found is not None and (not controllers or "memory" in controllers.split(",")):
            yield root / controllers / found[1].lstrip("/")


def _counters(folder: Path) -> list[Path]:
    """Version 2 adds up what is below; version 1 counts each group apart, and steps vanish while we look."""
    whole = folder / "memory.events"
    if whole.is_file():
        return [whole]
    return [Path(where, COUNTER) for where, _, names in os.walk(folder) if COUNTER in names]


def _count(path: Path) -> int:
    try:
        return sum(int(number) for number in _V2.findall(path.read_text()))
    except OSError:
        return 0

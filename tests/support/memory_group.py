"""A control group with little memory, whose processes the kernel kills; of version 1 or 2, as the machine has."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.chaos import wait_until
from support.faults import Strike

CGROUPS = Path("/sys/fs/cgroup")
TAKES_ALL = "    taken = []\n    while True:\n        taken.append(bytearray(1 << 24))\n"
"""The body of a function."""


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """A group below this process's own. Skips the test where no such group can be made."""
    lines = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    own = {controllers: path.lstrip("/") for _, controllers, path in lines}
    version, limit = ("memory", "memory.limit_in_bytes") if "memory" in own else ("", "memory.max")
    group = CGROUPS / version / own.get(version, "") / f"hpcrl-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            (group / limit).write_text(str(limit_bytes))
        except OSError as error:
            pytest.skip(f"this process's control group gives others no memory limit: {error}")
        yield group
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), 30, f"the end of all processes in {group}")
        group.rmdir()


@dataclass
class InGroup:
    """Puts the agents of a run, and with them all that they start, into a group."""

    group: Path

    def __call__(self, point: str) -> None:
        if point.startswith("as agent-"):
            (self.group / "cgroup.procs").write_text(str(os.getpid()))


class Hog(Strike):
    """Takes all the memory that there is."""

    def _strike(self) -> None:
        exec("if True:\n" + TAKES_ALL, {})

"""Commands as processes of their own: their CPU seconds and their peak of memory."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PATHS = (HERE, HERE.parent, HERE.parent / "tests")


class Cost(NamedTuple):
    """`peak` in bytes."""

    cpu_s: float
    peak: int


def cost_of(command: Sequence[str]) -> Cost:
    """What the process says goes nowhere. Raises RuntimeError where it fails."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, PATHS))}
    with open(os.devnull, "wb") as nowhere:
        process = subprocess.Popen(command, stdout=nowhere, env=environment)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)[:200]} ended with exit code {process.returncode}")
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)

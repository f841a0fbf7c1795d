"""Commands as processes of their own: their CPU seconds and their peak of memory."""

import json
import os
import subprocess
import sys
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
    """What the process says goes nowhere. Raises CalledProcessError where it fails.

    The system counts what a process was before it became a command, too: a small one is between.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, PATHS))}
    between = [sys.executable, "-I", "-S", __file__, *command]
    done = subprocess.run(between, stdout=subprocess.PIPE, env=environment, check=True)
    return Cost(*json.loads(done.stdout))


def _tell(command: Sequence[str]) -> int:
    with open(os.devnull, "wb") as nowhere:
        process = subprocess.Popen(command, stdout=nowhere)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]))
    return process.returncode


if __name__ == "__main__":
    sys.exit(_tell(sys.argv[1:]))

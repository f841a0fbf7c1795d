"""A toy's script that waits for a file in its second step, and tells nobody."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from support import toy_script

FILE = "HPCRL_TEST_AWAITED"


def asleep(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)


def loop(run: Any, e: Any) -> None:
    (actor,) = run.groups("actor")
    for step in run.steps():
        actor.generate(step.batch())
        if step.number == 2:
            asleep(Path(os.environ[FILE]))


ALGORITHM: Any = replace(toy_script.ALGORITHM, script=loop)

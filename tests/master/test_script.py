"""Scripts: what they ask for is made, written down, and the same however often they are killed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import toy_script
from support.chaos import toy_experiment, whole_run

ALGORITHM = f"{Path(toy_script.__file__)}:ALGORITHM"


def scripted(**cluster: Any) -> Any:
    return replace(toy_experiment(**({"lost_after_s": 60.0, "start_timeout_s": 60.0} | cluster)), algorithm=ALGORITHM)


def test_a_script_runs(tmp_path: Path) -> None:
    run = whole_run(tmp_path, scripted())
    print(run)

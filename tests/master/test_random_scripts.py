"""Random scripts, killed anywhere, end as if nothing had happened; and the wide matrix of one."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import random_script
from support.archives import archives
from support.chaos import create_run, finish, outputs, remains, started_twice, toy_experiment, whole_run
from support.faults import Strike, Strikes

RANDOM = f"{Path(random_script.__file__)}:ALGORITHM"
PATIENT = {"lost_after_s": 5.0, "start_timeout_s": 60.0}
WHERE = [
    ("master", ("master.ask", "master.turn", "master.send", "journal.before", "journal.after", "manifest.published")),
    ("worker-2", ("script.ask", "script.answered", "worker.call", "worker.executed", "spill.published")),
    ("worker-0", ("worker.call", "worker.executed", "worker.replied", "spill.published", "shard.published")),
]


def drawn_strikes(folder: Path, seed: int) -> list[Strike]:
    """Two, one after the other; the second may never come."""
    draw = random.Random(seed)
    found = []
    for number in range(2):
        who, points = draw.choice(WHERE)
        target = draw.choice(["self", "master", "agent-0", "worker-0", "worker-1", "worker-2", "all"])
        found.append(Strike(folder, f"strike{number}", who, draw.choice(points), "KILL", target, draw.randint(1, 25)))
    return found


def check(tmp_path: Path, experiment: Any, seed: int) -> None:
    (tmp_path / "whole").mkdir()
    undisturbed = whole_run(tmp_path / "whole", experiment)
    run = create_run(tmp_path / "run", experiment)
    strikes = drawn_strikes(tmp_path, seed)

    finish(run, Strikes(tuple(strikes)))
    assert remains(run) == remains(undisturbed), outputs(run)
    assert archives(run) == archives(undisturbed)
    assert started_twice(run) == []


FEW, MANY = range(6), range(6, 200)


@pytest.mark.parametrize("seed", [*FEW, *(pytest.param(seed, marks=pytest.mark.slow) for seed in MANY)])
def test_a_random_script_is_killed_anywhere(tmp_path: Path, seed: int) -> None:
    experiment = replace(toy_experiment(**PATIENT), algorithm=RANDOM, seed=seed)
    check(tmp_path, experiment, seed)

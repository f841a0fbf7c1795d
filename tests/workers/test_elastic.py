"""A run that is killed anywhere and resumed with other workers ends as if nothing had happened, up to rounding.

No part that has a line is executed again, whoever executed it; steps that were open keep their parts.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chaos import create_run, started_twice, toy_experiment
from support.cluster import alive_of
from support.elastic import (
    Shape,
    Whole,
    assert_nearly_equal,
    begin_on,
    finish_on,
    placed,
    whole,
)
from support.faults import Strike

from hpcrl.durable.rundir import RunDirectory

FAST = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
TWO, ONE = (1, 2), (1, 1)
CHANGES: list[tuple[Shape, Shape]] = [
    (TWO, ONE),
    (ONE, TWO),
    ((2, 1), (3, 1)),
    ((3, 1), (2, 1)),
    ((1, 4), (2, 1)),
]
# Where everybody is killed: with part of a generation finished, between train steps, before and after a step closes,
# while a checkpoint is written, and before what is behind it is tidied.
POINTS = [
    ("master", "journal.before", 3),
    ("master", "journal.after", 4),
    ("master", "journal.after", 9),
    ("master", "journal.before", 14),
    ("master", "journal.after", 22),
    ("master", "master.sent", 12),
    ("master", "manifest.write", 1),
    ("master", "manifest.published", 1),
    ("master", "compact.published", 1),
    ("worker-0", "spill.published", 1),
    ("worker-0", "spill.published", 5),
    ("worker-0", "worker.executed", 9),
    ("worker-0", "shard.published", 1),
]


@pytest.fixture(scope="module")
def reference() -> Iterator[Whole]:
    """What an undisturbed run on two workers leaves."""
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        experiment = placed(toy_experiment(), TWO)
        run = create_run(Path(name, "run"), experiment)
        finish_on(run, experiment)
        yield whole(run)


def killed(run: RunDirectory, strike: Strike, nonce: str = "first") -> None:
    """A submission of the run as it was placed last, with everybody killed where the strike says."""
    jobs = begin_on(run, nonce, run.experiment(), strike)
    jobs.wait_for("master", 20)
    jobs.kill_all()
    assert strike.marker.exists(), "the strike never came: the test tests nothing"


@pytest.mark.parametrize(("before", "after"), CHANGES)
@pytest.mark.parametrize(("role", "point", "nth"), POINTS)
def test_a_run_killed_anywhere_goes_on_with_other_workers_and_nothing_is_computed_twice(
    folder: Path, reference: Whole, before: Shape, after: Shape, role: str, point: str, nth: int
) -> None:
    run = create_run(folder / "run", placed(toy_experiment(), before))
    killed(run, Strike(folder, "kill", role, point, "KILL", "all", nth))
    finish_on(run, placed(toy_experiment(), after))
    assert_nearly_equal(run, reference)
    assert started_twice(run) == []
    assert alive_of(run.root) == []

"""A run that trains nothing goes on from its last closed step, reads nothing of what is behind it, and prunes it."""

import dataclasses
from pathlib import Path

import pytest
from support import toy_untrained
from support.chaos import (
    Remains,
    create_run,
    finish,
    kill_once,
    outputs,
    remains,
    started_twice,
    toy_experiment,
    whole_run,
)
from support.cluster import alive_of
from support.covering import covering

from hpcrl.durable.attempts import progress_of
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Checkpointed, Closed, Pruned
from hpcrl.durable.paths import step_of
from hpcrl.durable.recovery import plan_next_attempt
from hpcrl.durable.rundir import RunDirectory
from hpcrl.placement.disk import estimate_disk
from hpcrl.recipes.toy import ToyExperiment

STEPS = 6
POINTS = [
    ("master", "journal.before", 3),
    ("master", "journal.after", 9),
    ("master", "journal.after", 15),
    ("master", "manifest.write", 1),
    ("master", "manifest.synced", 2),
    ("master", "manifest.published", 3),
    ("housekeeper-0", "compact.synced", 2),
    ("housekeeper-0", "compact.published", 1),
    ("housekeeper-0", "parts.unlink", 3),
    ("master", "prune.unlink", 2),
    ("worker-0", "worker.executed", 9),
    ("worker-1", "spill.synced", 5),
    ("worker-0", "spill.published", 8),
]


def untrained(steps: int = STEPS) -> ToyExperiment:
    algorithm = f"{Path(toy_untrained.__file__)}:ALGORITHM"
    return dataclasses.replace(toy_experiment(steps=steps), algorithm=algorithm)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return whole_run(tmp_path_factory.mktemp("whole"), untrained())


@pytest.fixture(scope="module")
def undisturbed(whole: RunDirectory) -> Remains:
    return remains(whole)


def test_every_closed_step_is_a_cut_and_only_the_newest_are_kept(whole: RunDirectory) -> None:
    events = [line.event for line in read_history(whole).lines]
    closed = [event.step for event in events if isinstance(event, Closed)]
    assert closed == list(range(STEPS + 1))
    assert [event.step for event in events if isinstance(event, Checkpointed)] == closed
    assert [event.before_step for event in events if isinstance(event, Pruned)][-1] == STEPS - 1
    assert {step_of(path.name) for path in whole.spills.iterdir()} == {STEPS - 1, STEPS}
    assert {step_of(path.name) for path in whole.checkpoints.iterdir()} == {STEPS - 1, STEPS}


def test_the_next_attempt_reads_nothing_of_closed_steps(whole: RunDirectory) -> None:
    recovery = plan_next_attempt(whole, {})
    assert recovery.checkpoint is not None and recovery.checkpoint.step == STEPS
    assert not recovery.opened and not recovery.recorded and not recovery.replay
    assert f"starts from the checkpoint of step {STEPS}" in recovery.describe()
    assert "no role changes" in recovery.describe()


def test_its_disk_holds_the_spills_of_as_many_steps_as_it_keeps_cuts() -> None:
    disk = estimate_disk(untrained())
    assert disk.spilled == 3 and "checkpoint" not in disk.describe()


@pytest.mark.parametrize(("role", "point", "nth"), covering(POINTS, lambda case: case[0].partition("-")[0]))
def test_killed_anywhere_it_ends_as_if_nothing_had_happened(
    folder: Path, undisturbed: Remains, role: str, point: str, nth: int
) -> None:
    run = create_run(folder / "run", untrained())
    kill_once(run, role, point, nth)
    recovery = plan_next_attempt(run, {})
    before = progress_of(run)
    closed = [row.step for row in recovery.metrics]
    unread = [step for step in closed if recovery.checkpoint is not None and step <= recovery.checkpoint.step]
    assert len(closed) - len(unread) <= 2, "two steps may close at once, before either has its cut"
    finish(run)
    assert progress_of(run) != before or max(closed) == STEPS, "parts may still be removed when all is done"
    assert remains(run) == undisturbed, outputs(run)
    assert started_twice(run) == []
    assert alive_of(run.root) == []

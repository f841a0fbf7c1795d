"""Every export that was due is made, whoever is killed, and whatever checkpoint the run goes on from."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.chaos import begin, create_run, finish, outputs, toy_experiment, wait_until, whole_run
from support.faults import Strike

from hpcrl.config.control import Frequency
from hpcrl.durable.files import is_temporary
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Closed
from hpcrl.durable.rundir import RunDirectory
from hpcrl.recipes.toy import ToyExperiment

STEPS = 5


def exporting(every: int) -> ToyExperiment:
    """Every second step is saved."""
    toy = toy_experiment(STEPS)
    return replace(toy, control=replace(toy.control, export=Frequency(steps=every)))


def exports(run: RunDirectory) -> dict[str, bytes]:
    """Role and step → what was exported."""
    return {
        f"{role}/{name}": np.load(run.exports / role / name / "w.npy").tobytes()
        for role in ("actor", "critic")
        for name in run.files.listing(run.exports / role)
        if not is_temporary(name)
    }


@pytest.fixture(scope="module")
def every_step(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    made = exports(whole_run(tmp_path_factory.mktemp("exports"), exporting(every=1)))
    assert list(made) == [f"{role}/step-{step:08d}" for role in ("actor", "critic") for step in range(1, STEPS + 1)]
    return made


def test_an_export_that_was_under_way_when_its_checkpoint_was_there_is_made_after_all(folder: Path) -> None:
    run = create_run(folder / "run", exporting(every=2))
    strike = Strike(folder, "kill", "master", "export.synced", "KILL", "all")
    finish(run, strike)
    assert strike.marker.exists()
    for role in ("actor", "critic"):
        assert sorted(run.files.listing(run.exports / role)) == [f"step-{step:08d}" for step in (2, 4, 5)], outputs(run)


@pytest.mark.parametrize("nth", [1, 4])
def test_exports_of_steps_before_a_checkpoint_are_made_though_everybody_is_killed_before_they_are_there(
    folder: Path, every_step: dict[str, bytes], nth: int
) -> None:
    """It takes long to publish the first of them, or the fourth, while the run trains on and saves later steps."""
    run = create_run(folder / "run", exporting(every=1))
    slow = Strike(folder, "slow", "master", "export.synced", "SLEEP", nth=nth)
    jobs = begin(run, "first", slow)
    wait_until(lambda: closed(run) == STEPS, 90, "the last step")
    wait_until(lambda: len(list(run.checkpoints.glob("step-00000004.*/*.safetensors"))) == 3, 90, "what was saved")
    jobs.kill_all()
    assert slow.marker.exists() and len(exports(run)) == nth - 1
    finish(run)
    assert exports(run) == every_step, outputs(run)


def closed(run: RunDirectory) -> int:
    """The last step that is closed."""
    events = [line.event for line in read_history(run).lines]
    return max((event.step for event in events if isinstance(event, Closed)), default=0)

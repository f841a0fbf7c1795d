"""Runs with models that find their checkpoints damaged: who loads one says so, and the one before serves as well."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.chaos import Remains, begin, create_run, finish, outputs, remains, whole_run
from support.faults import Strike
from support.forged import flip, last_element
from support.hosts import write_task
from support.tiny_ppo import tiny_ppo

from hpcrl.durable.history import checkpoint_lines, read_history
from hpcrl.durable.journal import Damaged
from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.status_text import status_text
from hpcrl.inspect.views.audit import audit
from hpcrl.inspect.views.status import read_status
from hpcrl.inspect.views.why import causes_of


def element(path: Path) -> None:
    flip(path, last_element(path))


def shorter(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def missing(path: Path) -> None:
    path.unlink()


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(task: Path, tmp_path_factory: pytest.TempPathFactory) -> Remains:
    return remains(whole_run(tmp_path_factory.mktemp("whole"), tiny_ppo(task, steps=5, nodes=1)))


def broken_off(task: Path, folder: Path) -> RunDirectory:
    """A run that has two checkpoints and is killed before it removes what is older."""
    run = create_run(folder / "run", tiny_ppo(task, steps=5, nodes=1))
    jobs = begin(run, "first", Strike(folder, "kill", "master", "prune.unlink", "KILL", "all"))
    jobs.wait_for("master", 120)
    jobs.kill_all()
    return run


@pytest.mark.parametrize("damage", [element, *(pytest.param(it, marks=pytest.mark.slow) for it in (shorter, missing))])
def test_a_damaged_shard_of_the_newest_checkpoint_is_found_told_and_costs_no_bit(
    task: Path, tmp_path: Path, undisturbed: Remains, damage: Callable[[Path], None]
) -> None:
    run = broken_off(task, tmp_path)
    newest = next(checkpoint_lines(read_history(run)))
    shard = (run.root / newest.manifest.name).parent / "critic.r001.safetensors"
    damage(shard)
    assert [it.file for it in audit(RunReader(run)).damaged] == [run.files.name(shard)]
    finish(run)
    assert remains(run, damaged=True) == undisturbed, outputs(run)
    found = [line.event for line in read_history(run).lines if isinstance(line.event, Damaged)]
    assert [event.step for event in found] == [newest.step] * (damage is element)
    if damage is element:
        told = causes_of(run)[-2]
        assert (told.attempt, told.kind, told.continued) == (1, "disk", True)
        assert "critic was saved with digest" in told.said


@pytest.mark.slow
def test_where_both_are_damaged_the_run_begins_from_its_base_weights(
    task: Path, tmp_path: Path, undisturbed: Remains
) -> None:
    run = broken_off(task, tmp_path)
    named = [line.step for line in checkpoint_lines(read_history(run))]
    for shard in run.root.glob("checkpoints/*/actor.r000.safetensors"):
        element(shard)
    finish(run)
    assert remains(run, damaged=True) == undisturbed, outputs(run)
    assert [line.event.step for line in read_history(run).lines if isinstance(line.event, Damaged)] == named
    print(status_text(read_status(run.root)))

"""Runs with models in layouts of their own, killed in release, restore, save and export: the same bits."""

from pathlib import Path

import pytest
from support.chaos import create_run, finish, outputs, remains, whole_run
from support.faults import OnceThere
from support.hosts import write_task
from support.phases import Phased
from support.struck_layouts import Blow, check_struck
from support.tiny_layouts import STAGES, tiny_layouts

from hpcrl.durable.rundir import RunDirectory

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(task: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return whole_run(tmp_path_factory.mktemp("whole"), tiny_layouts(task, 2, STAGES))


CALLED = ("worker-1", "worker.call", 8)
BLOWS = {
    "release": Blow("worker-0", "release.begin", 3),
    "released": Blow("worker-1", "release.end", 4, "agent-0"),
    "let go": Blow("worker-0", "let_go.begin", 2, "master"),
    "restore": Blow("worker-1", "restore.begin", 1, "all", after=CALLED),
    "restored": Blow("worker-1", "restore.end", 1, "agent-0", after=CALLED),
    "copy for a checkpoint": Blow("worker-0", "snapshot.begin", 3),
    "shard": Blow("worker-1", "shard.write", 1, "agent-0"),
    "shard: published": Blow("worker-0", "shard.published", 2, "master"),
    "copy for an export": Blow("worker-1", "export.begin", 1),
    "export": Blow("worker-0", "export.write", 1),
    "exporting": Blow("master", "export.synced", 1, "all"),
}


@pytest.mark.parametrize("name", BLOWS)
def test_killed_while_models_leave_come_back_or_are_written_a_run_ends_with_the_same_bits(
    undisturbed: RunDirectory, task: Path, tmp_path: Path, name: str
) -> None:
    check_struck(tmp_path, tiny_layouts(task, 2, STAGES), BLOWS[name], undisturbed)


def test_one_that_dies_while_others_save_keeps_none_of_them_from_it(
    undisturbed: RunDirectory, task: Path, tmp_path: Path
) -> None:
    """It dies before its own copy, once its peer's shard is published, which waits for nobody."""
    run = create_run(tmp_path / "run", tiny_layouts(task, 2, STAGES))
    pattern = "checkpoints/step-*.a000/[ac]*.r000.safetensors"
    strike = OnceThere(tmp_path, "kill", "worker-1", "snapshot.begin", "KILL", tree=run.root, pattern=pattern)
    assert finish(run, Phased(strike)) == [0], "not within its submission"
    assert strike.marker.exists() and len(run.numbers()) == 2
    assert remains(run) == remains(undisturbed), outputs(run)

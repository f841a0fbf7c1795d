"""Runs with models on real processes, killed in moves and blends, and between them and what follows: the same bits."""

from pathlib import Path

import pytest
from support.chaos import begin, create_run, outputs, whole_run
from support.faults import InWorkers
from support.hosts import write_task
from support.struck_layouts import Blow, check_struck
from support.tiny_layouts import STAGES, flip_a_bit, tiny_layouts

from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(task: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return whole_run(tmp_path_factory.mktemp("whole"), tiny_layouts(task, 2, STAGES))


MOVED = ("worker-0", "move.end", 3)
BLENDED = ("worker-1", "blend.end", 2)
BLOWS = {
    "before a move": Blow("worker-0", "move.begin", 3, "agent-0"),
    "in a move, whose peer is in it": Blow("worker-1", "carry.begin", 4),
    "moved": Blow("worker-1", "move.end", 4),
    "a move is ordered": Blow("master", "master.moving", 3, "all"),
    "between move and call": Blow("worker-0", "worker.call", 1, "agent-0", after=MOVED),
    "in a blend": Blow("worker-1", "blend.begin", 2, "all"),
    "who gives in a blend": Blow("worker-0", "carry.begin", 4),
    "between blend and line": Blow("master", "journal.before", 1, after=BLENDED),
    "the line of a blend": Blow("master", "journal.after", 1, "all", after=BLENDED),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOWS)
def test_killed_around_a_move_or_a_blend_a_run_ends_with_the_same_bits(
    undisturbed: RunDirectory, task: Path, tmp_path: Path, name: str
) -> None:
    check_struck(tmp_path, tiny_layouts(task, 2, STAGES), BLOWS[name], undisturbed)


def test_a_bit_that_is_flipped_on_the_way_ends_the_run(task: Path, tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", tiny_layouts(task, 2, STAGES, lost_after_s=60.0, start_timeout_s=60.0))
    jobs = begin(run, "flipped", InWorkers(flip_a_bit))
    assert jobs.wait_for("master", 90) == ExitCode.INTERNAL, outputs(run)
    jobs.kill_all()
    assert "version 1 of actor was moved to actor@1, which now has the parameters" in outputs(run)

"""Models on a range of nodes: whatever comes and goes meanwhile, they end as on a fixed number, and say the same."""

from dataclasses import replace
from pathlib import Path

import pytest
from algos.test_elastic import ppo
from support.chaos import create_run, outputs, started_twice
from support.elastic import Whole, assert_nearly_equal, whole
from support.faults import InLoad, Strike, Strikes
from support.hosts import write_task
from support.ranges import (
    EagerToGrow,
    begin_with,
    changes_of,
    join_in_time,
    leave,
    responses_of,
    wait_for_step,
)

from hpcrl.durable.attempts import newest_nodes
from hpcrl.durable.rundir import RunDirectory
from hpcrl.recipes.ppo import PPOExperiment

NONCE, STEPS = "first", 5
EAGER = EagerToGrow()
Said = dict[str, str]


def ranged(task: Path, nodes: int | str) -> PPOExperiment:
    """A worker on each node. Without checkpoints but at the end, and where the run grows."""
    experiment = ppo(task, "fp64")
    cluster = replace(experiment.cluster, nodes=nodes, workers_per_node=1, lost_after_s=6.0)
    cluster = replace(cluster, patience_s=60.0, grow_every_s=0.0, start_timeout_s=90.0)
    checkpoint = replace(experiment.control.checkpoint, steps=100)
    control = replace(experiment.control, steps=STEPS, checkpoint=checkpoint)
    samples = replace(experiment.samples, per_step="all")
    return replace(experiment, cluster=cluster, control=control, samples=samples)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


@pytest.fixture(scope="module")
def reference(task: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Whole, Said]:
    run = create_run(tmp_path_factory.mktemp("reference") / "run", ranged(task, 2))
    jobs = begin_with(run, NONCE, [0, 1])
    code = jobs.wait_for("master", 180)
    jobs.kill_all()
    assert code == 0, outputs(run)
    said = responses_of(run)
    assert len(said) >= STEPS * 10
    return whole(run), said


def assert_alike(run: RunDirectory, reference: tuple[Whole, Said]) -> None:
    assert_nearly_equal(run, reference[0], 1e-9, 1e-11)
    assert responses_of(run) == reference[1]
    assert started_twice(run) == []


@pytest.mark.slow
def test_models_that_are_trained_on_two_nodes_then_three(
    tmp_path: Path, task: Path, reference: tuple[Whole, Said]
) -> None:
    run = create_run(tmp_path / "run", replace_patience(ranged(task, "2-3"), 1.0))
    jobs = begin_with(run, NONCE, [0, 2], EAGER)
    wait_for_step(run, 1, 120)
    join_in_time(jobs, run, NONCE, 1)
    code = jobs.wait_for("master", 180)
    jobs.kill_all()
    assert code == 0, outputs(run)
    assert changes_of(run) == [(2, 3)]
    assert_alike(run, reference)


@pytest.mark.slow
def test_models_that_are_trained_on_three_nodes_then_two(
    tmp_path: Path, task: Path, reference: tuple[Whole, Said]
) -> None:
    run = create_run(tmp_path / "run", ranged(task, "1-3"))
    jobs = begin_with(run, NONCE, [0, 1, 2])
    wait_for_step(run, 2, 120)
    leave(jobs, 1)
    code = jobs.wait_for("master", 180)
    jobs.kill_all()
    assert code == 0, outputs(run)
    assert changes_of(run) == [(3, 2)]
    assert_alike(run, reference)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("who", "point", "target"),
    [
        ("master", "manifest.write", "all"),
        ("worker-2", "worker.loading", "all"),
        ("worker-2", "worker.loading", "agent-1"),
        ("master", "manifest.write", "agent-0"),
    ],
)
def test_whoever_is_killed_while_a_run_grows_its_models_are_the_same(
    tmp_path: Path, task: Path, reference: tuple[Whole, Said], who: str, point: str, target: str
) -> None:
    experiment = ranged(task, "2-3" if target == "all" else "1-3")
    run = create_run(tmp_path / "run", replace_patience(experiment, 2.0))
    nth = 2 if point == "worker.loading" else 1  # a role is loaded, the next is not
    strike = Strike(tmp_path, "kill", who, point, "KILL", target, nth=nth)
    jobs = begin_with(run, NONCE, [0, 2], Strikes((EAGER, InLoad(strike))))
    wait_for_step(run, 1, 120)
    join_in_time(jobs, run, NONCE, 1, InLoad(strike))
    code = jobs.wait_for("master", 180)
    jobs.kill_all()
    assert strike.marker.exists(), f"the strike never came: the test tests nothing\n{outputs(run)}"
    if target == "all":
        jobs = begin_with(run, "second", [0, 1, 2])
        code = jobs.wait_for("master", 180)
        jobs.kill_all()
    assert code == 0, outputs(run)
    assert newest_nodes(run) == {"all": (0, 1, 2), "agent-0": (1, 2), "agent-1": (0, 2)}[target]
    assert_alike(run, reference)


def replace_patience(experiment: PPOExperiment, patience_s: float) -> PPOExperiment:
    return replace(experiment, cluster=replace(experiment.cluster, patience_s=patience_s))

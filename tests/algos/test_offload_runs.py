"""PPO whose masters and moments are updated in the host's memory: the same run to the bit, killed or not."""

import dataclasses
from pathlib import Path

import pytest
from support.chaos import create_run, finish, outputs, remains, whole_run
from support.faults import Strike
from support.hosts import write_task
from support.phases import Phased
from support.tiny_ppo import tiny_ppo

from hpcrl.durable.rundir import RunDirectory
from hpcrl.recipes.ppo import PPOExperiment

LONGEST_S = 240.0


def offloaded(experiment: PPOExperiment) -> PPOExperiment:
    """Actor and critic."""
    roles = {role: dataclasses.replace(getattr(experiment, role), offload="optimizer") for role in ("actor", "critic")}
    return dataclasses.replace(experiment, **roles)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


@pytest.fixture(scope="module")
def plain(task: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return whole_run(tmp_path_factory.mktemp("plain"), tiny_ppo(task, steps=3, nodes=1))


STRIKES = {
    "before its reply": ("worker-1", "worker.executed", 9),
    "in a backward pass": ("worker-0", "backward.begin", 4),
    "in a snapshot": ("worker-0", "shard.synced", 2),
}


FAST = ("before its reply",)


@pytest.mark.parametrize("name", [pytest.param(it, marks=() if it in FAST else pytest.mark.slow) for it in STRIKES])
def test_a_run_that_offloads_and_is_killed_has_the_bits_of_one_that_does_neither(
    plain: RunDirectory, task: Path, tmp_path: Path, name: str
) -> None:
    worker, point, nth = STRIKES[name]
    run = create_run(tmp_path / "run", offloaded(tiny_ppo(task, steps=3, nodes=1)))
    killed = Strike(tmp_path, "kill", worker, point, "KILL", nth=nth)
    assert finish(run, Phased(killed), timeout_s=LONGEST_S) == [0], outputs(run)
    assert killed.marker.exists() and remains(run) == remains(plain)

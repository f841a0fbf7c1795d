"""PPO whose masters and moments are updated in the host's memory: the same run to the bit, killed or not."""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.chaos import create_run, finish, outputs, remains, whole_run
from support.faults import Strike
from support.hosts import write_task
from support.phases import Phased
from support.tiny_ppo import tiny_ppo

from hpcrl.durable.rundir import RunDirectory
from hpcrl.recipes.ppo import PPOExperiment

LONGEST_S = 240.0
SLOW = pytest.mark.slow
BACKENDS = {
    "native": ("native", "native"),
    "zero 1 and 2": ("zero1", "zero2"),
    "zero 3": ("zero3", "zero3"),
}
"""Of actor and critic."""


def placed(task: Path, backends: str, offload: Any) -> PPOExperiment:
    """Actor and critic on two workers."""
    whole = tiny_ppo(task, steps=3, nodes=1)
    own, of_critic = ({"backend": backend, "offload": offload} for backend in BACKENDS[backends])
    return replace(whole, actor=replace(whole.actor, **own), critic=replace(whole.critic, **of_critic))


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


@pytest.fixture(scope="module")
def plain(task: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunDirectory]:
    """A run that offloads nothing."""
    return functools.cache(lambda backends: whole_run(tmp_path_factory.mktemp("plain"), placed(task, backends, "none")))


STRIKES = {
    "before its reply": ("worker-1", "worker.executed", 9),
    "in a backward pass": ("worker-0", "backward.begin", 4),
    "in a snapshot": ("worker-0", "shard.synced", 2),
}
FAST = {("native", "before its reply"), ("zero 1 and 2", "in a backward pass")}


@pytest.mark.parametrize(
    ("backends", "name"),
    [
        pytest.param(backends, name, marks=() if (backends, name) in FAST else SLOW)
        for backends in BACKENDS
        for name in STRIKES
    ],
)
def test_a_run_that_offloads_and_is_killed_has_the_bits_of_one_that_does_neither(
    plain: Callable[[str], RunDirectory], task: Path, tmp_path: Path, backends: str, name: str
) -> None:
    worker, point, nth = STRIKES[name]
    run = create_run(tmp_path / "run", placed(task, backends, "optimizer"))
    killed = Strike(tmp_path, "kill", worker, point, "KILL", nth=nth)
    assert finish(run, Phased(killed), timeout_s=LONGEST_S) == [0], outputs(run)
    assert killed.marker.exists() and remains(run) == remains(plain(backends))

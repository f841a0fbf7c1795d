"""PPO whose masters and moments are updated in the host's memory, or whose parameters are there, too: the same run to
the bit, killed or not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.chaos import create_run, finish, outputs, remains, whole_run, whole_runs
from support.elastic import begin_on, finish_on
from support.faults import Strike
from support.hosts import write_task
from support.layout_runs import check_alike, parameters
from support.mishaps import OnceJournalled
from support.phases import Phased
from support.struck_layouts import exported
from support.tiny_layouts import Home, tiny_layouts
from support.tiny_ppo import tiny_ppo

from hpcrl.durable.rundir import RunDirectory
from hpcrl.recipes.ppo import PPOExperiment

LONGEST_S = 240.0
SLOW = pytest.mark.slow
KINDS = {
    "native": ("native optimizer", "native optimizer", "native none"),
    "fsdp": ("fsdp parameters", "fsdp optimizer", "fsdp parameters"),
    "zero 2 and 3": ("zero2 optimizer", "zero3 parameters", "zero3 parameters"),
    "zero 1 and 3": ("zero1 optimizer", "zero3 optimizer", "native none"),
}
"""Under what actor, critic and reference are, and what of them is offloaded."""
ROLES = ("actor", "critic", "reference")


def placed(task: Path, kind: str, offload: str | None = None) -> PPOExperiment:
    """All on two workers. `offload` stands for that of the trained roles."""
    whole = tiny_ppo(task, steps=3, nodes=1)
    roles: dict[str, Any] = {}
    for role, of in zip(ROLES, KINDS[kind], strict=True):
        backend, what = of.split()
        trained = {} if offload is None or role == "reference" else {"offload": offload}
        roles[role] = replace(getattr(whole, role), **({"backend": backend, "offload": what} | trained))
    return replace(whole, **roles)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


@pytest.fixture(scope="module")
def plain(task: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunDirectory]:
    """A run that offloads nothing."""

    def kept(kind: str) -> PPOExperiment:
        whole = placed(task, kind, "none")
        return replace(whole, reference=replace(whole.reference, offload="none"))

    return whole_runs(tmp_path_factory, kept)


STRIKES = {
    "before its reply": ("worker-1", "worker.executed", 9),
    "in a backward pass": ("worker-0", "backward.begin", 4),
    "in a snapshot": ("worker-0", "shard.synced", 2),
}
FAST = {("native", "before its reply")}


@pytest.mark.parametrize(
    ("kind", "name"),
    [pytest.param(kind, name, marks=() if (kind, name) in FAST else SLOW) for kind in KINDS for name in STRIKES],
)
def test_a_run_that_offloads_and_is_killed_has_the_bits_of_one_that_does_neither(
    plain: Callable[[str], RunDirectory], task: Path, tmp_path: Path, kind: str, name: str
) -> None:
    worker, point, nth = STRIKES[name]
    run = create_run(tmp_path / "run", placed(task, kind))
    killed = Strike(tmp_path, "kill", worker, point, "KILL", nth=nth)
    assert finish(run, Phased(killed), timeout_s=LONGEST_S) == [0], outputs(run)
    assert killed.marker.exists() and remains(run) == remains(plain(kind))


@SLOW
def test_a_run_goes_on_with_other_things_in_the_hosts_memory(
    plain: Callable[[str], RunDirectory], task: Path, tmp_path: Path
) -> None:
    """Nothing, masters and moments, all, and nothing again; killed each time."""
    run = create_run(tmp_path / "run", placed(task, "fsdp", "none"))
    for number, what in enumerate(("none", "optimizer", "parameters"), 1):
        line = rb'"type":"trained","step":%d,' % number
        strike = OnceJournalled(tmp_path, f"kill{number}", "worker-0", "worker.call", "KILL", "all", line=line)
        strike = replace(strike, attempt=f"{number - 1:03d}")
        jobs = begin_on(run, f"on{number}", placed(task, "fsdp", what), strike)
        jobs.wait_for("master", 60.0)
        jobs.kill_all()
        assert strike.marker.exists()
    finish_on(run, placed(task, "fsdp", "none"))
    ours, theirs = parameters(run), parameters(plain("fsdp"))
    assert all(np.array_equal(array, theirs[name]) for name, array in ours.items()), ours.keys()


ELSEWHERE: dict[str, Home] = {
    "actor": {"layout": "d2", "backend": "fsdp"},
    "critic": {"layout": "d2", "backend": "fsdp"},
    "reference": {"layout": "d2", "backend": "fsdp"},
    "actor_gen": {"layout": "d1", "mesh": "0", "backend": "native"},
    "critic_inf": {"layout": "d1", "mesh": "1"},
}


@SLOW
def test_what_is_offloaded_is_moved_and_blended(task: Path, tmp_path: Path) -> None:
    """The actor generates as a copy under another backend, and is blended into the reference."""
    whole = tiny_layouts(task, 2, ELSEWHERE)
    offloaded = replace(
        whole,
        **{
            role: replace(section, offload="parameters", between=type(section.between)())
            for role in ROLES
            for section in [getattr(whole, role)]
        },
    )
    runs = []
    for name, experiment in (("here", whole), ("there", offloaded)):
        (tmp_path / name).mkdir()
        runs.append(whole_run(tmp_path / name, experiment))
    assert remains(runs[1]) == remains(runs[0])
    assert exported(runs[1]) == exported(runs[0])


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("kind", KINDS)
def test_gpus_learn_the_same_up_to_rounding(task: Path, tmp_path: Path, kind: str) -> None:
    runs = []
    for what in ("none", None):
        whole = placed(task, kind, what)
        (folder := tmp_path / str(what)).mkdir()
        runs.append(whole_run(folder, replace(whole, cluster=replace(whole.cluster, device="cuda"))))
    check_alike(runs[1], runs[0])

"""Runs whose models Megatron-core computes and trains, on real processes: what hpcrl's own backend learns up to
rounding, and the same bits after kills."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import megatron_cpu
from support.chaos import begin, create_run, finish, outputs, remains, whole_run
from support.exported import check_exports
from support.hosts import write_task
from support.layout_runs import check_alike, ppo
from support.phases import Cut, Phased
from support.struck_layouts import Blow, check_struck
from support.tiny_layouts import Home, tiny_layouts

from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.recipes.ppo import PPOExperiment

ON_CPU = f"{megatron_cpu.__file__}:CPU"


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


def cut(task: Path, backend: str = ON_CPU, layout: str = "t2") -> PPOExperiment:
    """Actor, critic and reference on two workers each."""
    whole = ppo(task, layout, 2)
    roles = {"backend": backend, "dtype": "fp32", "layout": layout}
    return replace(
        whole,
        actor=replace(whole.actor, **roles),
        critic=replace(whole.critic, **roles),
        reference=replace(whole.reference, **roles),
    )


@pytest.fixture(scope="module")
def undisturbed(task: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return whole_run(tmp_path_factory.mktemp("whole"), cut(task))


@pytest.mark.slow
def test_its_checkpoints_give_the_same_exports_offline(undisturbed: RunDirectory, tmp_path: Path) -> None:
    assert check_exports(undisturbed, tmp_path / "offline")


@pytest.mark.slow
def test_a_run_learns_what_hpcrls_own_backend_does(undisturbed: RunDirectory, task: Path, tmp_path: Path) -> None:
    check_alike(undisturbed, whole_run(tmp_path, cut(task, "native")))


@pytest.mark.slow
def test_a_node_without_gpus_refuses_what_computes_on_them_alone(task: Path, tmp_path: Path) -> None:
    """Megatron-core itself. Before a run has nodes, nobody can say so."""
    experiment = cut(task, "megatron")
    run = create_run(tmp_path / "run", replace(experiment, cluster=replace(experiment.cluster, device="auto")))
    jobs = begin(run, "s0")
    try:
        assert jobs.wait_for("master", 60) == ExitCode.CONFIGURATION, outputs(run)
    finally:
        jobs.kill_all()
    verdict = run.read_verdict(0)
    assert verdict is not None
    assert "backend = megatron computes on cuda only, but cluster.device = auto has come to cpu" in verdict.reason


BLOWS = {
    "in generation": Blow("worker-1", "decode.begin", 3),
    "in a backward pass": Blow("worker-0", "backward.begin", 5),
    "before its reply": Blow("worker-1", "worker.executed", 6),
    "in a snapshot": Blow("worker-0", "shard.synced", 2),
    "the agent": Blow("worker-0", "worker.executed", 7, "agent-0"),
    "all": Blow("master", "journal.after", 14, "all"),
}
FAST = ("in a backward pass",)


@pytest.mark.parametrize("name", [pytest.param(it, marks=() if it in FAST else pytest.mark.slow) for it in BLOWS])
def test_a_run_that_is_struck_ends_with_the_same_bits(
    undisturbed: RunDirectory, task: Path, tmp_path: Path, name: str
) -> None:
    check_struck(tmp_path, cut(task), BLOWS[name], undisturbed)


@pytest.mark.slow
def test_a_connection_that_breaks_in_a_backward_pass_begins_another_attempt(
    undisturbed: RunDirectory, task: Path, tmp_path: Path
) -> None:
    run = create_run(tmp_path / "run", cut(task))
    broken = Cut(tmp_path, "cut", "worker-1", "backward.begin", "CUT", nth=5)
    assert finish(run, Phased(broken)) == [ExitCode.DONE], outputs(run)
    assert run.numbers() == [0, 1]
    assert "PeerLostError: " in run.events(0).read_text()
    assert remains(run) == remains(undisturbed), outputs(run)


PLACES: dict[str, Home] = {
    "actor": {"layout": "t2", "backend": ON_CPU},
    "critic": {"layout": "d1", "mesh": "1"},
    "reference": {"layout": "t2", "backend": ON_CPU},
    "actor_gen": {"layout": "d1", "mesh": "0"},
    "critic_inf": {"layout": "d2", "mesh": "0-1"},
}
NATIVE: dict[str, Home] = {name: place | {"backend": "native"} for name, place in PLACES.items() if "backend" in place}


@pytest.mark.slow
def test_models_are_moved_blended_and_released(task: Path, tmp_path: Path) -> None:
    """The actor moves to where it generates, and is blended into the reference, of its own backend or of another."""
    found = {}
    for name, places in {
        "all": PLACES,
        "one": PLACES | {"reference": NATIVE["reference"]},
        "none": PLACES | NATIVE,
    }.items():
        whole = tiny_layouts(task, 2, places)
        roles = {role: replace(getattr(whole, role), dtype="fp32") for role in ("actor", "critic", "reference")}
        (tmp_path / name).mkdir()
        found[name] = remains(whole_run(tmp_path / name, replace(whole, **roles)))
    assert found["all"].ids == found["none"].ids
    assert found["all"].trained == found["one"].trained
    for row, reference in zip(found["all"].metrics, found["none"].metrics, strict=True):
        np.testing.assert_allclose(list(row.values()), list(reference.values()), rtol=1e-3, atol=1e-4)

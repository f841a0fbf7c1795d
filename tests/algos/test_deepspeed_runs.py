"""Runs that DeepSpeed's ZeRO trains, on real processes: what hpcrl's own backend learns up to rounding, and the same
bits after kills."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.chaos import create_run, finish, outputs, remains, whole_runs
from support.hosts import write_task
from support.layout_runs import check_alike, ppo
from support.phases import Cut, Phased
from support.struck_layouts import Blow, check_struck

from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.recipes.ppo import PPOExperiment

SLOW = pytest.mark.slow
BACKENDS = ("zero1", "zero2", "zero3")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


def cut(task: Path, backend: str) -> PPOExperiment:
    """Actor, critic and reference on two workers each."""
    whole = ppo(task, "d2", 2)
    roles = {"backend": backend, "dtype": "fp32"}
    return replace(
        whole,
        actor=replace(whole.actor, **roles),
        critic=replace(whole.critic, **roles),
        reference=replace(whole.reference, **roles, layout="d2"),
    )


@pytest.fixture(scope="module")
def undisturbed(task: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunDirectory]:
    """A run on each backend that a test asks for."""
    return whole_runs(tmp_path_factory, lambda backend: cut(task, backend))


@SLOW
@pytest.mark.parametrize("backend", ["zero1", "zero2", "zero3"])
def test_a_run_learns_what_hpcrls_own_backend_does(undisturbed: Callable[[str], RunDirectory], backend: str) -> None:
    check_alike(undisturbed(backend), undisturbed("native"))


BLOWS = {
    "in generation": Blow("worker-1", "decode.begin", 3),
    "in a backward pass": Blow("worker-0", "backward.begin", 5),
    "before its reply": Blow("worker-1", "worker.executed", 6),
    "in a snapshot": Blow("worker-0", "shard.synced", 2),
    "the agent": Blow("worker-0", "worker.executed", 7, "agent-0"),
    "all": Blow("master", "journal.after", 14, "all"),
}
FAST = ("zero3 in a backward pass",)


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        pytest.param(backend, name, id=what, marks=() if what in FAST else SLOW)
        for backend in BACKENDS
        for name in BLOWS
        for what in [f"{backend} {name}"]
    ],
)
def test_a_run_that_is_struck_ends_with_the_same_bits(
    undisturbed: Callable[[str], RunDirectory], task: Path, tmp_path: Path, backend: str, name: str
) -> None:
    check_struck(tmp_path, cut(task, backend), BLOWS[name], undisturbed(backend))


@SLOW
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_connection_that_breaks_begins_another_attempt(
    undisturbed: Callable[[str], RunDirectory], task: Path, tmp_path: Path, backend: str
) -> None:
    run = create_run(tmp_path / "run", cut(task, backend))
    strike = Cut(tmp_path, "cut", "worker-1", "backward.begin", "CUT", nth=5)
    assert finish(run, Phased(strike)) == [ExitCode.DONE], outputs(run)
    assert run.numbers() == [0, 1]
    assert "PeerLostError: DeepSpeed's" in run.events(0).read_text()
    assert remains(run) == remains(undisturbed(backend)), outputs(run)

"""Runs whose models FSDP2 shards, on real processes: what hpcrl's own backend learns, and the same bits after kills."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.chaos import create_run, finish, outputs, remains, whole_run
from support.elastic import begin_on, finish_on
from support.exported import check_exports
from support.hosts import write_task
from support.layout_runs import parameters, ppo
from support.mishaps import OnceJournalled
from support.phases import Cut, Phased
from support.struck_layouts import Blow, check_struck, exported
from support.tiny_layouts import Home, tiny_layouts

from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.recipes.ppo import PPOExperiment


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


def sharded(task: Path, backend: str = "fsdp", dtype: str = "fp64") -> PPOExperiment:
    """Actor, critic and reference on two workers each; nothing is clipped."""
    whole = ppo(task, "d2", 2)
    optimizer = replace(whole.actor.optimizer, grad_clip=0.0)
    return replace(
        whole,
        actor=replace(whole.actor, backend=backend, dtype=dtype, optimizer=optimizer),
        critic=replace(whole.critic, backend=backend, dtype=dtype, optimizer=optimizer),
        reference=replace(whole.reference, backend=backend, dtype=dtype, layout="d2"),
    )


@pytest.fixture(scope="module")
def undisturbed(task: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return whole_run(tmp_path_factory.mktemp("whole"), sharded(task))


def test_its_checkpoints_give_the_same_exports_offline(undisturbed: RunDirectory, tmp_path: Path) -> None:
    assert check_exports(undisturbed, tmp_path / "offline")


def test_a_sharded_run_has_the_bits_of_one_in_flat_buffers(
    undisturbed: RunDirectory, task: Path, tmp_path: Path
) -> None:
    flat = whole_run(tmp_path, sharded(task, "native"))
    ours, theirs = remains(undisturbed), remains(flat)
    assert (ours.ids, ours.trained) == (theirs.ids, theirs.trained)
    for row, reference in zip(ours.metrics, theirs.metrics, strict=True):
        assert list(row) == list(reference)
        np.testing.assert_allclose(list(row.values()), list(reference.values()), rtol=1e-12)
    whole, expected = parameters(undisturbed), parameters(flat)
    assert all(np.array_equal(array, expected[name]) for name, array in whole.items()), whole.keys()


@pytest.mark.parametrize("blow", [None, pytest.param(Blow("worker-1", "decode.begin", 3), marks=pytest.mark.slow)])
def test_calls_under_another_backend_have_its_bits(
    undisturbed: RunDirectory, task: Path, tmp_path: Path, blow: Blow | None
) -> None:
    """The actor is sharded where it is trained, and whole where it generates, on the same workers."""
    apart = replace(sharded(task), calls={"actor_gen": {"backend": "native"}})
    run = whole_run(tmp_path / "apart", apart)
    assert remains(run).ids == remains(undisturbed).ids
    assert remains(run).trained == remains(undisturbed).trained
    if blow:
        check_struck(tmp_path, apart, blow, run)


BLOWS = {
    "in generation": Blow("worker-1", "decode.begin", 3),
    "in a backward pass": Blow("worker-0", "backward.begin", 5),
    "before its reply": Blow("worker-1", "worker.executed", 6),
    "before its spill": Blow("worker-1", "spill.synced", 5),
    "in a snapshot": Blow("worker-0", "shard.synced", 2),
    "the agent": Blow("worker-0", "worker.executed", 7, "agent-0"),
    "all": Blow("master", "journal.after", 14, "all"),
}


FAST = ("in a backward pass",)


@pytest.mark.parametrize("name", [pytest.param(it, marks=() if it in FAST else pytest.mark.slow) for it in BLOWS])
def test_a_sharded_run_that_is_struck_ends_with_the_same_bits(
    undisturbed: RunDirectory, task: Path, tmp_path: Path, name: str
) -> None:
    check_struck(tmp_path, sharded(task), BLOWS[name], undisturbed)


@pytest.mark.slow
def test_a_connection_that_breaks_among_fsdps_collectives_begins_another_attempt(
    undisturbed: RunDirectory, task: Path, tmp_path: Path
) -> None:
    run = create_run(tmp_path / "run", sharded(task))
    cut = Cut(tmp_path, "cut", "worker-1", "backward.begin", "CUT", nth=5)
    assert finish(run, Phased(cut)) == [ExitCode.DONE], outputs(run)
    assert run.numbers() == [0, 1]
    assert "PeerLostError: all-gather, operation" in run.events(0).read_text()
    assert remains(run) == remains(undisturbed), outputs(run)


SHARDED = {
    "actor": {"layout": "d2", "backend": "fsdp"},
    "critic": {"layout": "d1", "mesh": "1"},
    "reference": {"layout": "d2", "backend": "fsdp"},
    "actor_gen": {"layout": "d1", "mesh": "0"},
    "critic_inf": {"layout": "d2", "mesh": "0-1"},
}
FLAT = {name: {key: value for key, value in place.items() if key != "backend"} for name, place in SHARDED.items()}


def moved(task: Path, places: dict[str, Home]) -> PPOExperiment:
    """The actor moves from where it is trained to one worker, and is blended into the reference; it leaves the device
    between calls."""
    whole = tiny_layouts(task, 2, places)
    return replace(whole, actor=replace(whole.actor, optimizer=replace(whole.actor.optimizer, grad_clip=0.0)))


@pytest.mark.slow
def test_sharded_models_are_moved_blended_and_released(task: Path, tmp_path: Path) -> None:
    """The reference that is blended is sharded as the actor is."""
    found = {name: folder_of(tmp_path, name) for name in ("sharded", "flat", "mixed")}
    mixed = SHARDED | {"reference": {"layout": "d1", "mesh": "1"}}
    homes = {"sharded": SHARDED, "flat": FLAT, "mixed": mixed}
    runs = {name: whole_run(found[name], moved(task, places)) for name, places in homes.items()}
    ours, theirs = remains(runs["sharded"]), remains(runs["flat"])
    assert (ours.ids, ours.trained) == (theirs.ids, theirs.trained)
    expected = exported(runs["flat"])
    assert expected and exported(runs["sharded"]) == expected
    assert remains(runs["mixed"]).trained == theirs.trained
    for row, reference in zip(remains(runs["mixed"]).metrics, theirs.metrics, strict=True):
        np.testing.assert_allclose(list(row.values()), list(reference.values()), rtol=1e-9)


def folder_of(root: Path, name: str) -> Path:
    (root / name).mkdir()
    return root / name


@pytest.mark.slow
def test_a_run_goes_on_under_another_backend(task: Path, tmp_path: Path, undisturbed: RunDirectory) -> None:
    """From our own on one worker to FSDP on two and back, killed each time: with equal numbers up to rounding."""
    native, fsdp = sharded(task, "native"), sharded(task)
    run = create_run(tmp_path / "run", native)
    for number, (experiment, step) in enumerate(((native, 1), (fsdp, 2), (native, 3))):
        line = rb'"type":"trained","step":%d,' % step
        strike = OnceJournalled(tmp_path, f"kill{number}", "worker-0", "worker.call", "KILL", "all", line=line)
        jobs = begin_on(run, f"on{number}", experiment, replace(strike, attempt=f"{number:03d}"))
        jobs.wait_for("master", 60.0)
        jobs.kill_all()
        assert strike.marker.exists()
    finish_on(run, fsdp)
    ours, theirs = parameters(run), parameters(undisturbed)
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], rtol=1e-9, atol=1e-12, err_msg=name)

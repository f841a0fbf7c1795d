"""Runs whose models FSDP2 shards, on real processes: what hpcrl's own backend learns, and the same bits after kills."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.chaos import remains, whole_run
from support.hosts import write_task
from support.layout_runs import parameters, ppo
from support.struck_layouts import Blow, check_struck

from hpcrl.durable.rundir import RunDirectory
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


BLOWS = {
    "in generation": Blow("worker-1", "decode.begin", 3),
    "in a backward pass": Blow("worker-0", "backward.begin", 5),
    "before its reply": Blow("worker-1", "worker.executed", 6),
    "before its spill": Blow("worker-1", "spill.synced", 5),
    "in a snapshot": Blow("worker-0", "shard.synced", 2),
    "the agent": Blow("worker-0", "worker.executed", 7, "agent-0"),
    "all": Blow("master", "journal.after", 14, "all"),
}


@pytest.mark.parametrize("name", BLOWS)
def test_a_sharded_run_that_is_struck_ends_with_the_same_bits(
    undisturbed: RunDirectory, task: Path, tmp_path: Path, name: str
) -> None:
    check_struck(tmp_path, sharded(task), BLOWS[name], undisturbed)

"""The demo's PPO on Slurm: `hpcrl submit examples/addition/ppo.yaml --nodes 4`, models on real workers."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.chaos import outputs, remains
from support.slurm_cluster import SlurmCluster
from support.slurm_runs import SlurmRun, hpcrl

from hpcrl.durable.rundir import RunDirectory

pytestmark = pytest.mark.slurm
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def material(slurm_is_up: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, tokenizer and a model with random parameters."""
    folder = tmp_path_factory.mktemp("addition")
    subprocess.run([sys.executable, ROOT / "examples/addition/make_data.py", "--out", folder], check=True)
    return folder


def submit(slurm: SlurmCluster, material: Path, topology: str, name: str = "", **more: Any) -> SlurmRun:
    root = slurm.directory / (name or topology)
    settings = {
        "data.train": material / "train.jsonl",
        "data.evaluate": material / "test.jsonl",
        "data.evaluate_rows": 16,
        "data.batch_size": 32,
        "actor.path": material / "model",
        "critic.path": material / "model",
        "reference.path": material / "model",
        "actor.optimizer.warmup_steps": 0,
        "control.steps": 3,
        "control.checkpoint.steps": 2,
        "cluster.topology": topology,
        "cluster.slurm.partition": "low",
        "cluster.lost_after_s": 20,
    } | more
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    hpcrl(slurm, "submit", str(ROOT / "examples/addition/ppo.yaml"), "--nodes", "4", "--run-dir", str(root), *words)
    return SlurmRun(slurm, RunDirectory.open(root))


def test_ppo_runs_on_four_nodes_and_an_element_may_be_preempted(slurm: SlurmCluster, material: Path) -> None:
    run = submit(slurm, material, "array")
    run.wait_steps(1, timeout_s=150)
    with slurm.preempt(run.element_away_from_master()):
        run.wait_steps(1, timeout_s=150)
    run.wait_done(timeout_s=150)
    assert list((run.run.root / "export" / "actor").iterdir())
    said = hpcrl(slurm, "status", str(run.run.root)).stdout
    assert "done" in said


@pytest.mark.slow
@pytest.mark.timeout(600, func_only=True)
def test_all_topologies_give_the_same_numbers(slurm: SlurmCluster, material: Path) -> None:
    found = []
    for topology in ("array", "colocated", "hetjob"):
        run = submit(slurm, material, topology)
        run.wait_done(timeout_s=180)
        found.append(remains(run.run))
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
@pytest.mark.timeout(900, func_only=True)
@pytest.mark.parametrize("backend", ["fsdp", "zero2", "zero3"])
def test_a_sharded_ppo_that_is_preempted_and_killed_ends_with_the_same_bits(
    slurm: SlurmCluster, material: Path, backend: str
) -> None:
    sharded: dict[str, Any] = {f"{role}.backend": backend for role in ("actor", "critic", "reference")}
    sharded |= {"control.steps": 6, "reference.layout": "d8"}
    whole = submit(slurm, material, "array", "whole", **sharded)
    whole.wait_done(timeout_s=200)
    struck = submit(slurm, material, "array", "struck", **sharded)
    struck.wait_steps(1, timeout_s=150)
    with slurm.preempt(struck.element_away_from_master()):
        slurm.wait(lambda: len(struck.run.numbers()) == 2, "another attempt", timeout_s=60)
    struck.wait_steps(1, timeout_s=150)
    struck.kill("worker-5")
    slurm.wait(lambda: len(struck.run.numbers()) == 3, "another attempt", timeout_s=60)
    struck.wait_steps(1, timeout_s=150)
    struck.kill("master", "agent-1")
    struck.wait_done(timeout_s=200)
    assert len(struck.run.numbers()) == 4
    assert remains(struck.run) == remains(whole.run), outputs(struck.run)

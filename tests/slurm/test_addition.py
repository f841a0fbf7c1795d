"""The demo's PPO on Slurm: `hpcrl submit examples/addition/ppo.yaml --nodes 4`, models on real workers."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.chaos import remains
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


def submit(slurm: SlurmCluster, material: Path, topology: str) -> SlurmRun:
    root = slurm.directory / topology
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
    }
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

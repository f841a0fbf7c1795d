"""`hpcrl eval` on a real Slurm: durable as any run, and one table of several models."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.chaos import wait_until
from support.hosts import write_model, write_task
from support.slurm_cluster import SlurmCluster
from support.slurm_runs import SlurmRun, hpcrl

from hpcrl.durable.rundir import RunDirectory

pytestmark = pytest.mark.slurm
REWARD = """
import pathlib
import time

HOLD = pathlib.Path({hold!r})

def ones(prompt, response, row):
    while HOLD.exists():
        HOLD.with_name("asked").touch()
        time.sleep(0.05)
    return response.count("1") - 0.1 * len(response)
"""


def words_of(folder: Path, out: str, *models: str) -> list[str]:
    asked = [
        "--data",
        "held_out.jsonl",
        "--reward",
        f"{folder}/reward.py:ones",
        "--samples",
        "2",
        "--out",
        out,
        "--json",
    ]
    return [
        *models,
        *asked,
        "--max-new-tokens",
        "6",
        "--reward.trial_rows",
        "0",
        "--reward.timeout_s",
        "300",
        "--cluster.device",
        "cpu",
    ]


def on_slurm(slurm: SlurmCluster) -> list[str]:
    settings = {
        "cluster.type": "slurm",
        "cluster.workers_per_node": 1,
        "cluster.heartbeat_s": 0.2,
        "cluster.slurm.partition": "low",
        "cluster.slurm.cpus_per_worker": 2,
        "cluster.slurm.memory": "3G",
        "cluster.slurm.time": "30",
    }
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


@pytest.mark.slow
def test_models_are_evaluated_by_jobs_that_are_killed_and_preempted_as_if_nothing_had_happened(
    slurm: SlurmCluster,
) -> None:
    folder = slurm.directory
    write_task(folder)
    write_model(folder / "other", "0123456789+=# ", max_positions=64, blocks=1)
    hold = folder / "hold"
    (folder / "reward.py").write_text(REWARD.format(hold=str(hold)))
    local = ["--cluster.type", "local", "--cluster.workers_per_node", "1"]
    undisturbed = table(hpcrl(slurm, "eval", *words_of(folder, "local", "model", "other"), *local).stdout)

    hold.touch()
    words = [
        sys.executable,
        "-m",
        "hpcrl.cli.main",
        "eval",
        *words_of(folder, "out", "model", "other"),
        *on_slurm(slurm),
    ]
    with subprocess.Popen(
        words, cwd=folder, env={**slurm.env, "HPCRL_SITE": ""}, stdout=subprocess.PIPE, text=True
    ) as it:
        first = SlurmRun(slurm, waited_for(folder / "out" / "model-1"))
        first.kill("worker-0")
        wait_until(lambda: len(first.run.numbers()) == 2, 60, "another attempt")
        with slurm.preempt(first.jobs("run")[0]):
            wait_until(lambda: first.verdict == "preempted" or len(first.run.numbers()) > 2, 60, "the preemption")
        hold.unlink()
        said, _ = it.communicate(timeout=200)
    assert it.returncode == 0
    found = table(said)
    assert found == undisturbed
    assert len(first.run.numbers()) == 3
    assert {each["figure"] for each in found["differences"]} >= {"reward"}
    assert all(model["figures"]["reward"]["low"] is not None for model in found["models"])


def waited_for(root: Path) -> RunDirectory:
    """The run once its worker asks for scores."""
    wait_until(lambda: (root / "run.json").is_file(), 60, "the run")
    run = RunDirectory.open(root)
    wait_until(run.numbers, 120, "the first attempt")
    wait_until((root.parents[1] / "asked").exists, 120, "responses")
    return run


def table(said: str) -> dict[str, Any]:
    """Without where the runs are."""
    found: dict[str, Any] = json.loads(said)
    for model in found["models"]:
        del model["run_dir"]
    return found

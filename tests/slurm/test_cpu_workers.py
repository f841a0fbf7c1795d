"""PPO on Slurm whose rewards are made on CPU workers: the job asks for their CPUs, and one that dies changes no bit."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from support.chaos import create_run, finish, outputs, remains, started_twice
from support.hosts import write_task
from support.slurm_cluster import SlurmCluster
from support.slurm_runs import SlurmRun, hpcrl, toy_values
from support.tiny_ppo import tiny_ppo

from hpcrl.config.experiment import to_dict
from hpcrl.errors import ExitCode
from hpcrl.recipes.ppo import PPOExperiment

pytestmark = pytest.mark.slurm
STEPS = 20


def scored_apart(task: Path) -> PPOExperiment:
    """Two nodes, each with a model worker and a CPU worker."""
    write_task(task)
    experiment = tiny_ppo(task, steps=STEPS, nodes=2, workers=1)
    return dataclasses.replace(experiment, reward=dataclasses.replace(experiment.reward, workers=1))


def on_slurm(experiment: PPOExperiment, reward_workers: int = 1) -> dict[str, Any]:
    values = to_dict(experiment)
    values["cluster"] = toy_values("low", nodes=2)["cluster"] | {"lost_after_s": 20.0}
    values["reward"]["workers"] = reward_workers
    return values


@pytest.mark.slow
def test_a_run_on_slurm_gets_cpus_for_its_cpu_workers_and_goes_on_when_one_dies(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    experiment = scored_apart(tmp_path)
    run = SlurmRun.submit(slurm, on_slurm(experiment))
    run.wait_steps(2)
    elements = [f"{run.jobs('workers')[0]}_{node}" for node in range(2)]
    assert [slurm.run(["squeue", "-h", "-o", "%C", "-j", each]).stdout.split() for each in elements] == [["4"]] * 2
    run.kill("worker-3")
    run.wait_done()
    assert len(run.run.numbers()) == 2 and started_twice(run.run) == []
    (tmp_path / "here").mkdir()
    here = create_run(tmp_path / "here" / "run", experiment)
    assert finish(here, nodes=2) == [0], outputs(here)
    assert remains(run.run) == remains(here)


def test_cpu_workers_that_fit_no_node_are_refused_before_anything_is_sent(slurm: SlurmCluster, tmp_path: Path) -> None:
    values = on_slurm(scored_apart(tmp_path), reward_workers=4)
    (tmp_path / "run.json").write_text(json.dumps(values))
    said = hpcrl(slurm, "submit", str(tmp_path / "run.json"), "--run-dir", str(tmp_path / "run"), check=False)
    assert said.returncode == ExitCode.CONFIGURATION
    assert "2 · (1 + 4) = 10 CPUs of each node, but the largest node of partition low has 8." in said.stderr
    assert not (tmp_path / "run").exists()

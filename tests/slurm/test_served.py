"""PPO on two nodes of a real Slurm whose responses vLLM makes, in a server on each: vLLM itself where `make vllm` has
made its environment, else the stand-in. Its jobs are taken away while responses are made."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.chaos import create_run, finish, outputs, remains, started_twice
from support.made_parts import under_way_in
from support.serving import REAL, folders_of, served, stand_in_python, unmapped, write_served_task
from support.slurm_cluster import SlurmCluster
from support.slurm_runs import SlurmRun, hpcrl
from support.tiny_runs import tiny_cluster

from hpcrl.config.experiment import ExperimentConfig, to_dict
from hpcrl.config.generation import GenerationConfig

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(1200, func_only=True)]
ON_SLURM: dict[str, Any] = {
    "type": "slurm",
    "grace_s": 0.0,
    "replace_timeout_s": 120.0,
    "slurm": {
        "partition": "low",
        "master_partition": "cpu",
        "cpus_per_worker": 8,  # all of a node
        "memory": "4000M",
        "master_memory": "1500M",
        "time": "30",
    },
}


def asked(folder: Path) -> ExperimentConfig:
    """Few responses at a time, so that making them takes a while."""
    write_served_task(folder)
    python = REAL or stand_in_python(folder)
    experiment = served(folder, {"backend": "vllm", "python": python, "layout": "d2"}, "d2", 1)
    return replace(
        experiment,
        cluster=tiny_cluster(nodes=2, workers=1, lost_after_s=20.0),
        data=replace(experiment.data, samples_per_prompt=16),
        generation=GenerationConfig(max_new_tokens=40, slots=2),
    )


def test_a_run_whose_jobs_are_preempted_and_cancelled_as_vllm_generates_ends_with_the_same_bits(
    slurm: SlurmCluster,
) -> None:
    before, experiment = unmapped(), asked(slurm.directory)
    whole = create_run(slurm.directory / "whole", experiment)
    assert finish(whole, timeout_s=400, nodes=2) == [0], outputs(whole)
    values = to_dict(experiment)
    run = SlurmRun.submit(slurm, values | {"cluster": values["cluster"] | ON_SLURM})

    generating = wait_generating(run, 2)
    with slurm.preempt(run.element_away_from_master(2)):
        slurm.wait(lambda: run.run.newest_attempt() != generating, "another attempt", timeout_s=120)
    assert unfinished(run, generating), "it was not struck while responses were made"

    generating = wait_generating(run, 3)
    jobs = [*run.jobs("master"), *run.jobs("workers")]
    slurm.scancel(*jobs)
    slurm.wait_ended(*jobs)
    slurm.wait_no_processes()
    assert unfinished(run, generating), "it was not struck while responses were made"
    of_killed = folders_of(slurm.directory)  # Slurm kills an agent that takes longer than 5 s to leave
    hpcrl(slurm, "resume", str(run.run.root))

    run.wait_done(timeout_s=400)
    assert remains(run.run) == remains(whole), outputs(run.run)
    assert started_twice(run.run) == []
    assert set(folders_of(slurm.directory)) <= set(of_killed) and unmapped() - before == set()


def wait_generating(run: SlurmRun, step: int) -> int:
    """Until servers make responses of this step or a later one; in which attempt."""
    found: list[int] = []

    def generates() -> bool:
        newest = run.run.newest_attempt()
        if newest is not None and any(it[0] >= step for it in unfinished(run, newest)):
            found.append(newest)
        return bool(found)

    run.cluster.wait(generates, f"step {step} generates", 400)
    return found[0]


def unfinished(run: SlurmRun, attempt: int) -> list[tuple[int, int]]:
    """Step and part of each generation that was sent in an attempt and has not come to an end."""
    return sorted((it.step, it.part) for it in under_way_in(run.run, attempt) if it.call == "actor_gen")

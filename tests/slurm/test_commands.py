"""The commands about a run while it is on a real Slurm, from a shell that has only the run directory."""

import json
import subprocess
import sys
import time
from typing import Any

import pytest
from support.experiments import ppo_values, write_config, write_inputs, write_model
from support.slurm_cluster import SlurmCluster
from support.slurm_runs import SlurmRun, hpcrl, toy_values

from hpcrl.errors import ExitCode

pytestmark = pytest.mark.slurm


def status(run: SlurmRun, **env: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "hpcrl.cli.main", "status", str(run.run.root), "--json"]
    return dict(json.loads(run.cluster.run(command, env=env).stdout))


def wait_state(run: SlurmRun, state: str) -> dict[str, Any]:
    run.cluster.wait(lambda: status(run)["state"] == state, f"the run is {state}", 60)
    return status(run)


def is_quiet(run: SlurmRun, seconds: float) -> bool:
    """No step closes for so long."""
    before = run.steps
    time.sleep(seconds)
    return run.steps == before


def test_a_model_that_no_node_of_a_partition_can_hold_is_refused_before_it_is_sent(slurm: SlurmCluster) -> None:
    write_inputs(slurm.directory)
    write_model(slurm.directory / "model", hidden_size=4096, intermediate_size=11008, num_hidden_layers=32)
    config = str(write_config(slurm.directory / "ppo.yaml", ppo_values()))
    words = ["submit", config, "--cluster", "slurm", "--cluster.device", "cpu", "--cluster.slurm.partition", "low"]
    for memory, had in (
        ([], "without cluster.slurm.memory a job gets, on partition low, 15.6 GiB"),
        (["--cluster.slurm.memory", "0"], "a node of partition low has 15.6 GiB"),
    ):
        refused = hpcrl(slurm, *words, *memory, check=False)
        assert refused.returncode == ExitCode.CONFIGURATION and f"but {had}" in refused.stderr, refused.stderr
    assert slurm.squeue("jobid", "--states=pending,running") == []


def test_status_logs_pause_and_list_follow_a_run_whose_master_waits_for_slurm(slurm: SlurmCluster) -> None:
    values = toy_values("low")
    values["control"]["steps"] = 22
    run = SlurmRun.submit(slurm, values)
    root = str(run.run.root)
    (master,), (workers,) = run.jobs("master"), run.jobs("workers")
    follower = subprocess.Popen(
        [sys.executable, "-m", "hpcrl.cli.main", "logs", root, "--follow", "--grep", "^(attempt|order|ending|closed)"],
        env=slurm.env,
        stdout=subprocess.PIPE,
        text=True,
    )
    run.wait_steps(2)

    seen = status(run)
    assert seen["state"] == "running" and seen["attempt"] == 0 and len(seen["workers"]) == 4
    (node,) = slurm.job_nodes(master)
    said = hpcrl(slurm, "status", root).stdout
    assert f"Slurm    master {master} running on {node}; workers {workers}: 4 running" in said

    unasked = status(run, PATH="/nowhere")
    assert unasked["state"] == "running" and unasked["slurm"]["missing"] == "there is no squeue in PATH"

    assert "is paused" in hpcrl(slurm, "pause", root).stdout
    assert status(run)["state"] == "paused"
    assert "is paused already" in hpcrl(slurm, "pause", root).stdout
    slurm.wait(lambda: is_quiet(run, 1.5), "calls in flight are finished, no others begin", 60)
    assert "continues" in hpcrl(slurm, "continue", root).stdout
    run.wait_steps(1)

    slurm.run(["scontrol", "requeuehold", master])
    seen = wait_state(run, "waiting for Slurm")
    assert f"its master's job {master}" in seen["why"] and seen["workers"] == [] and "by itself" in seen["hint"]
    assert "It will obey when it begins" in hpcrl(slurm, "pause", root).stdout
    (line,) = json.loads(hpcrl(slurm, "list", str(slurm.directory), "--json").stdout)
    assert (line["state"], line["topology"]) == ("waiting for Slurm", "array")
    assert line["jobs"] == {"master": master, "workers": workers}
    table = hpcrl(slurm, "list", str(slurm.directory)).stdout
    assert f"array master {master} workers {workers}" in table and "waiting for Slurm" in table
    assert follower.poll() is None, "somebody who follows the logs waits for the next attempt"

    slurm.run(["scontrol", "release", master])
    wait_state(run, "paused")
    hpcrl(slurm, "continue", root)
    run.wait_done()
    followed, _ = follower.communicate(timeout=60)
    assert {"a000", "a001"} <= {line.split()[1] for line in followed.splitlines()}
    assert "ending state=done" in followed and "paused=true" in followed

    assert status(run)["state"] == "done"
    agent = hpcrl(slurm, "logs", root, "--worker", "agent-0").stdout
    assert {line.split()[2] for line in agent.splitlines()} == {"agent-0"}
    assert "is done" in hpcrl(slurm, "pause", root).stdout


def test_a_run_that_waits_in_the_queue_is_resumed_once_it_is_stopped(slurm: SlurmCluster) -> None:
    values = toy_values("low")
    values["control"]["steps"] = 2
    values["cluster"]["slurm"]["master_flags"] = ["--hold"]
    run = SlurmRun.submit(slurm, values)
    resume = ("resume", str(run.run.root), "--cluster.slurm.master_flags", "[]")
    refused = hpcrl(slurm, *resume, check=False)
    assert refused.returncode == ExitCode.CONFIGURATION
    assert f"{run.run.root} is waiting in the queue, and continues by itself" in refused.stderr
    _, _, advice = refused.stderr.partition("end it first: hpcrl ")
    hpcrl(slurm, *advice.split(maxsplit=2)[:2])
    hpcrl(slurm, *resume)
    run.wait_done()


def test_a_run_that_was_cancelled_or_has_not_begun_says_so(slurm: SlurmCluster) -> None:
    values = toy_values("low")
    values["cluster"]["slurm"]["master_flags"] = ["--hold"]
    run = SlurmRun.submit(slurm, values)
    (master,), (workers,) = run.jobs("master"), run.jobs("workers")
    seen = status(run)
    assert seen["state"] == "waiting for Slurm" and seen["attempt"] is None
    told = f"master {master} pending (JobHeldUser); workers {workers}: 4 pending (Dependency)"
    # Slurm finds its reasons a moment after it has taken the jobs.
    slurm.wait(lambda: told in hpcrl(slurm, "status", str(run.run.root)).stdout, told)
    slurm.scancel(master, workers)
    slurm.wait_ended(master, workers)
    seen = status(run)
    assert seen["state"] == "killed" and "cancelled" in seen["why"]
    assert "hpcrl resume" in seen["hint"]
    logged = hpcrl(slurm, "logs", str(run.run.root), "--follow")
    assert logged.returncode == 0

"""The test cluster itself: what tests of hpcrl on Slurm rely on."""

import os
import sys
from pathlib import Path

import pytest
from support import slurm_cluster
from support.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slurm

BEATS = 'echo "run ${SLURM_RESTART_COUNT:-0} on $SLURMD_NODENAME"; exec sleep 600'


def daemons(slurm: SlurmCluster) -> dict[str, str]:
    return {path.stem: path.read_text() for path in (slurm.root / "run").glob("*.pid")}


def test_up_twice_starts_nothing_anew(slurm: SlurmCluster) -> None:
    before = daemons(slurm)
    job = slurm.sbatch("sleep 600", "--partition=low")
    slurm.wait_state(job, "RUNNING")
    slurm_cluster.up()
    assert daemons(slurm) == before
    assert {"munged", "slurmctld", *(f"slurmd.{node}" for node in slurm.nodes)} <= set(before)
    assert slurm.state(job) == "RUNNING"


def test_commands_need_the_environment_that_is_handed_out(slurm: SlurmCluster) -> None:
    assert os.environ.get("SLURM_CONF") != slurm.env["SLURM_CONF"]
    assert not any(name.startswith("SLURM_JOB") for name in slurm.env)


def test_a_job_runs_on_each_node_with_this_python(slurm: SlurmCluster) -> None:
    python = f"{sys.executable} -c 'import hpcrl, sys; print(sys.prefix)'"
    jobs = {
        node: slurm.sbatch(f"echo $SLURMD_NODENAME; {python}", "--partition=high", f"--nodelist={node}")
        for node in slurm.nodes
    }
    assert set(slurm.wait_ended(*jobs.values()).values()) == {"COMPLETED"}
    assert {node: slurm.output(job) for node, job in jobs.items()} == {node: f"{node}\n{sys.prefix}\n" for node in jobs}


def test_each_task_of_a_gpu_node_gets_one_of_its_two_gpus(slurm: SlurmCluster) -> None:
    step = "srun --ntasks-per-node=2 --gpus-per-task=1 bash -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'"
    job = slurm.sbatch(step, "--partition=gpu", "--nodes=4", "--ntasks-per-node=2", "--gpus-per-node=2")
    assert slurm.wait_ended(job) == {job: "COMPLETED"}
    assert sorted(slurm.output(job).splitlines()) == [f"{node} {gpu}" for node in slurm.gpu_nodes for gpu in (0, 1)]


def test_elements_and_components_have_states_of_their_own(slurm: SlurmCluster) -> None:
    array = slurm.sbatch("exit $SLURM_ARRAY_TASK_ID", "--partition=low", "--array=0-2%2")
    both = slurm.sbatch("#!/bin/bash\n#SBATCH -p cpu -n1\n#SBATCH hetjob\n#SBATCH -p gpu -n1\nexit 0\n")
    assert slurm.wait_ended(array) == {f"{array}_0": "COMPLETED", f"{array}_1": "FAILED", f"{array}_2": "FAILED"}
    assert slurm.wait_ended(both) == {f"{both}+0": "COMPLETED", f"{both}+1": "COMPLETED"}


@pytest.mark.slow
@pytest.mark.parametrize("partition", ["low", "lowgrace"])
def test_a_preempted_job_runs_again(slurm: SlurmCluster, partition: str) -> None:
    node = slurm.gpu_nodes[0]
    job = slurm.sbatch(BEATS, f"--partition={partition}", f"--nodelist={node}")
    slurm.wait(lambda: slurm.output(job) != "", "the job has begun")
    with slurm.preempt(job) as preemptor:
        assert preemptor.nodes == (node,)
        assert slurm.state(job) == "PENDING"
    slurm.wait_state(job, "RUNNING")
    slurm.wait(lambda: f"run 1 on {node}\n" in slurm.output(job), "the job has begun again")


def test_a_job_of_the_partition_cancels_is_gone_when_preempted(slurm: SlurmCluster) -> None:
    job = slurm.sbatch(BEATS, "--partition=cancels")
    slurm.wait_state(job, "RUNNING")
    with slurm.preempt(slurm.job_nodes(job)[0]):
        assert slurm.wait_ended(job) == {job: "PREEMPTED"}


@pytest.mark.slow
def test_a_requeued_job_runs_again(slurm: SlurmCluster) -> None:
    job = slurm.sbatch(BEATS, "--partition=low")
    slurm.wait_state(job, "RUNNING")
    slurm.requeue(job)
    slurm.wait(lambda: "run 1" in slurm.output(job), "the job has begun again")


@pytest.mark.slow
def test_a_node_goes_down_and_comes_back(slurm: SlurmCluster) -> None:
    job = slurm.sbatch(BEATS, "--partition=cpu")
    slurm.wait_state(job, "RUNNING")
    lost, other = slurm.cpu_nodes
    slurm.wait(lambda: f"run 0 on {lost}" in slurm.output(job), "the job has begun")
    slurm.node_down(lost)
    assert slurm.node_state(lost) == "down"
    slurm.wait(lambda: f"run 1 on {other}" in slurm.output(job), "the job has begun on the other node")
    slurm.node_up(lost)
    assert slurm.node_state(lost) == "idle"


def test_a_killed_slurmd_is_started_by_up_and_its_job_goes_on(slurm: SlurmCluster) -> None:
    node = slurm.gpu_nodes[3]
    job = slurm.sbatch(BEATS, "--partition=low", f"--nodelist={node}")
    slurm.wait(lambda: slurm.output(job) != "", "the job has begun")
    before = daemons(slurm)
    slurm.kill_slurmd(node)
    slurm.restart()
    after = daemons(slurm)
    assert {name for name in before if before[name] != after[name]} == {f"slurmd.{node}"}
    assert slurm.state(job) == "RUNNING"
    assert slurm.output(job) == f"run 0 on {node}\n"
    assert slurm.wait_ended(slurm.sbatch("true", "--partition=high", f"--nodelist={node}")).popitem()[1] == "COMPLETED"


def test_processes_of_jobs_are_found_even_those_that_hide(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "hide").write_text("#!/bin/bash\nenv --ignore-environment setsid sleep 611 &\n")
    job = slurm.sbatch(f"sleep 610 & bash {tmp_path / 'hide'}; wait", "--partition=low")
    hidden_too = (slurm.root / "etc" / "cgroup.conf").read_text().count("ConstrainRAMSpace") == 1
    expected = {"sleep 610", "sleep 611"} if hidden_too else {"sleep 610"}
    slurm.wait(lambda: {p.command for p in slurm.job_processes()} >= expected, "the processes are found")
    assert {p.job_id for p in slurm.job_processes() if p.command == "sleep 610"} == {job}
    slurm.kill_job(job)
    if hidden_too:
        slurm.wait_no_processes()


def test_accounting_tells_how_a_job_ended(slurm: SlurmCluster) -> None:
    job = slurm.sbatch("exit 3", "--partition=low")
    slurm.wait_ended(job)
    sacct = ["sacct", "-nXP", "-j", job, "-o", "State,ExitCode"]
    slurm.wait(lambda: slurm.run(sacct).stdout == "FAILED|3:0\n", "sacct knows the end")


def test_no_cluster_without_root_and_the_reason_is_said(slurm: SlurmCluster) -> None:
    nobody = ["setpriv", "--reuid=65534", "--clear-groups", slurm_cluster.SCRIPT, "up"]
    result = slurm.run(nobody, check=False, env={"HPCRL_TEST_CLUSTER": "/tmp/hpcrl-slurm-of-nobody"})
    assert result.returncode == slurm_cluster.NOT_HERE
    assert result.stderr == "no Slurm test cluster here: it needs root\n"

"""`hpcrl doctor` on a real Slurm: by a job, in a job, in a step, and where the nodes are taken."""

import json
import sys

import pytest
from support.slurm_cluster import SlurmCluster
from support.slurm_runs import hpcrl

pytestmark = pytest.mark.slurm

DOCTOR = f"{sys.executable} -m hpcrl.cli.main doctor --in-job --run-root ."


def left(slurm: SlurmCluster) -> list[str]:
    return [path.name for path in slurm.directory.glob(".hpcrl-doctor*")]


def test_two_nodes_are_asked_and_nothing_is_left(slurm: SlurmCluster) -> None:
    done = hpcrl(slurm, "doctor", "--json", "--partition", "low", "--run-root", ".", check=False)
    shown = json.loads(done.stdout)
    by_name = {finding["what"]: finding for finding in shown["findings"]}
    assert done.returncode == shown["status"] == 0, [each for each in shown["findings"] if each["severity"] != "ok"]
    nodes = shown["measurements"]["nodes"]
    assert len({node["name"] for node in nodes} & set(slurm.nodes)) == 2
    assert by_name["preemption on low"]["value"] == "requeue, GraceTime 0 s"
    assert by_name["machines"]["severity"] == "note", "all nodes of the test cluster are one machine"
    for what in ("TCP", "a new file in a listing", "link from two nodes at once", "O_EXCL from two nodes at once"):
        assert by_name[what]["severity"] == "ok", by_name[what]
    assert slurm.wait_ended(shown["measurements"]["job"]["id"]).popitem()[1] == "COMPLETED"
    slurm.wait_no_processes(2)
    assert left(slurm) == []


def test_the_nodes_of_a_job_are_asked_from_its_script_and_from_a_step(slurm: SlurmCluster) -> None:
    script = f"{DOCTOR}; echo status $?\nsrun {DOCTOR}; echo status $?"
    job = slurm.sbatch(script, "--partition=low", "--nodes=3", "--ntasks-per-node=1", f"--chdir={slurm.directory}")
    assert slurm.wait_ended(job) == {job: "COMPLETED"}
    said = slurm.output(job)
    assert said.count("3 of 3 answered") == 2, said
    assert said.count("status 0") == 2, said
    assert left(slurm) == []


def test_a_job_that_has_to_wait_is_taken_back(slurm: SlurmCluster) -> None:
    holder = slurm.sbatch("sleep 1000", "--partition=gpu", "--nodes=4", "--exclusive")
    slurm.wait_state(holder, "RUNNING")
    done = hpcrl(slurm, "doctor", "--json", "--partition", "gpu", "--wait", "2", "--run-root", ".", check=False)
    shown = json.loads(done.stdout)
    assert done.returncode == 1
    assert "has not started within 2 s" in shown["measurements"]["job"]["failed"]
    assert slurm.state(shown["measurements"]["job"]["id"]) == "CANCELLED"
    assert left(slurm) == []


def test_a_partition_that_does_not_exist_is_a_problem(slurm: SlurmCluster) -> None:
    done = hpcrl(slurm, "doctor", "--partition", "gone", "--run-root", ".", check=False)
    assert done.returncode == 2
    assert "does not exist" in done.stdout

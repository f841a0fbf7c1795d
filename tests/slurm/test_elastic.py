"""Runs on a real Slurm that go on with other nodes, or elsewhere: they end as an undisturbed run, up to rounding."""

import pytest
from support.chaos import started_twice, wait_until
from support.elastic import Whole, assert_nearly_equal, opened_parts, whole
from support.slurm_cluster import SlurmCluster
from support.slurm_runs import UNDELAYED, SlurmRun, hpcrl, toy_values, undisturbed_run

from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Opened

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def reference(slurm_is_up: None, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return whole(undisturbed_run(tmp_path_factory.mktemp("reference")))


def partition_of(slurm: SlurmCluster, job: str) -> str:
    return slurm.run(["squeue", "-h", "-o", "%P", "-j", job]).stdout.split()[0]


def wait_parts(run: SlurmRun, parts: int) -> None:
    """Until a step has been opened for so many workers."""
    wait_until(lambda: parts in opened_parts(run.run).values(), 90, f"a step with {parts} parts")


@pytest.mark.slow
def test_a_run_of_three_nodes_goes_on_with_two_and_then_with_one(slurm: SlurmCluster, reference: Whole) -> None:
    run = SlurmRun.submit(slurm, toy_values("low", nodes=3))
    root = str(run.run.root)
    run.wait_steps(2)
    hpcrl(slurm, "stop", root)
    slurm.wait_no_processes()

    said = hpcrl(slurm, "resume", root, "--nodes", "2", "--cluster.slurm.partition", "cancels").stdout
    assert "with cluster.nodes = 2 (was 3)\nwith cluster.slurm.partition = cancels (was low)" in said
    workers = run.jobs("workers")[-1]
    wait_parts(run, 2)
    assert len(slurm.job_nodes(workers)) == 2 and partition_of(slurm, workers) == "cancels"
    # Who is queued again reads what the submission was given, as its first start did.
    run.kill("master")
    run.wait_steps(2)
    assert len(slurm.job_nodes(workers)) == 2

    hpcrl(slurm, "stop", root)
    slurm.wait_no_processes()
    hpcrl(slurm, "resume", root, "--nodes", "1", "--critic.mesh", "0", "--cluster.topology", "auto", *UNDELAYED)
    assert run.jobs("run"), "one node is one job"
    wait_parts(run, 1)
    run.wait_done()
    assert_nearly_equal(run.run, reference)
    assert started_twice(run.run) == []
    opened = [line.event for line in read_history(run.run).lines if isinstance(line.event, Opened)]
    assert [event.step for event in opened] == sorted({event.step for event in opened})


@pytest.mark.slow
def test_a_run_moves_from_a_machine_to_slurm_and_back(slurm: SlurmCluster, reference: Whole) -> None:
    values = toy_values("none", nodes=1, workers_per_node=2, type="local")
    run = SlurmRun.submit(slurm, values, "--detach")
    root = str(run.run.root)
    run.wait_steps(2)
    hpcrl(slurm, "stop", root)

    words = (
        "--cluster",
        "slurm",
        "--nodes",
        "3",
        "--cluster.workers_per_node",
        "1",
        "--cluster.slurm.partition",
        "low",
    )
    said = hpcrl(slurm, "resume", root, *words).stdout
    assert "with cluster.type = slurm (was local)\nwith cluster.topology = array (was auto)" in said
    wait_parts(run, 3)
    assert "Slurm" in hpcrl(slurm, "status", root).stdout
    refused = hpcrl(slurm, "resume", root, "--cluster", "local", check=False)
    assert refused.returncode == 64 and "is running" in refused.stderr
    hpcrl(slurm, "stop", root)
    slurm.wait_no_processes()

    hpcrl(slurm, "resume", root, "--cluster", "local", "--nodes", "2", "--detach", *UNDELAYED)
    wait_until(lambda: run.verdict == "done", 120, "done")
    assert_nearly_equal(run.run, reference)
    assert started_twice(run.run) == []

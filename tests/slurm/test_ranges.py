"""Runs of a range of nodes on a real Slurm: each takes what it can get, and ends as if undisturbed, up to rounding."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
from support.chaos import started_twice
from support.elastic import Whole, assert_nearly_equal, whole
from support.ranges import changes_of, told
from support.slurm_cluster import SlurmCluster
from support.slurm_runs import SlurmRun, hpcrl, toy_values, undisturbed_run

from hpcrl.events import AttemptEnded, NodesChanged

pytestmark = pytest.mark.slurm
SOME, MANY = 40, 60


def ranged(slurm: SlurmCluster, **cluster: Any) -> dict[str, Any]:
    """A worker on each of two to four nodes, which it has alone; the master is elsewhere."""
    values = toy_values("low", nodes="2-4", patience_s=3.0, replace_timeout_s=4.0, grow_every_s=0.0, **cluster)
    values["control"] |= {"steps": SOME}
    values["cluster"]["slurm"]["flags"] = ["--exclusive", f"--exclude={','.join(slurm.cpu_nodes)}"]
    return values


def on_six(**cluster: Any) -> dict[str, Any]:
    """The same on all nodes of the cluster: each has room for one worker, and for the master beside it."""
    values = toy_values("low", nodes="2-6", patience_s=3.0, replace_timeout_s=4.0, grow_every_s=0.0, **cluster)
    values["control"] |= {"steps": MANY}
    values["cluster"]["slurm"]["cpus_per_worker"] = 5
    return values


@pytest.fixture(scope="module")
def reference(slurm_is_up: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Whole]:
    """What a run of so many steps leaves that nobody disturbs."""
    return functools.cache(lambda steps: whole(undisturbed_run(tmp_path_factory.mktemp("reference"), steps)))


def wait_change(run: SlurmRun, before: int, after: int) -> None:
    run.wait(lambda: (before, after) in changes_of(run.run), 90, f"a change from {before} to {after} nodes")


def test_an_array_begins_with_what_has_come_grows_shrinks_and_leaves_nothing_in_the_queue(
    slurm: SlurmCluster, reference: Callable[[int], Whole]
) -> None:
    third, fourth = slurm.gpu_nodes[2:4]
    taken = [slurm.preempt(third), slurm.preempt(fourth)]
    run = SlurmRun.submit(slurm, ranged(slurm))
    (workers,) = run.jobs("workers")
    run.wait_steps(2)
    assert slurm.state(f"{workers}_3") == "PENDING" and changes_of(run.run) == []
    said = hpcrl(slurm, "status", str(run.run.root)).stdout
    assert "on 2 of 2-4 nodes" in said

    taken[0].end()
    wait_change(run, 2, 3)
    (joined,) = [element for element in (2, 3) if slurm.state(f"{workers}_{element}") == "RUNNING"]
    run.wait_steps(2)
    with slurm.preempt(f"{workers}_{joined}"):
        wait_change(run, 3, 2)
        run.wait_steps(2)
    wait_change(run, 2, 3)
    assert "not replaced within cluster.replace_timeout_s = 4" in told(run.run, NodesChanged)[1].why

    run.wait(lambda: run.verdict == "done", 120, "done")
    slurm.wait_ended(workers)
    assert_nearly_equal(run.run, reference(SOME))
    assert started_twice(run.run) == []
    assert {event.state for event in told(run.run, AttemptEnded)} == {"grown", "lost", "done"}
    states = [slurm.state(f"{workers}_{element}") for element in range(4)]
    assert sorted(states) == ["CANCELLED", "COMPLETED", "COMPLETED", "COMPLETED"]
    assert slurm.state(taken[1].job_id) == "RUNNING", "nobody else's job was touched"
    taken[1].end()
    slurm.wait_no_processes()


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["colocated", "hetjob"])
def test_a_job_that_has_all_nodes_uses_those_that_slurm_gave(
    slurm: SlurmCluster, reference: Callable[[int], Whole], topology: str
) -> None:
    most = 5 if topology == "hetjob" else 6  # no two parts of a heterogeneous job share a node
    taken = [slurm.preempt(node) for node in slurm.gpu_nodes[2:4]]
    run = SlurmRun.submit(slurm, on_six(topology=topology) | {"name": topology})
    (job,) = run.jobs("run")
    run.wait_steps(2)
    assert changes_of(run.run) == []
    for each in taken:
        each.end()
    slurm.requeue(job)
    wait_change(run, most - 2, most)
    run.wait_steps(2)
    if topology == "hetjob":  # is not preempted where its master is not
        slurm.node_down(slurm.gpu_nodes[3])
        wait_change(run, most, most - 1)
        slurm.node_up(slurm.gpu_nodes[3])
    else:
        with slurm.preempt(slurm.gpu_nodes[3]):
            wait_change(run, most, most - 1)
    run.wait_done()
    assert_nearly_equal(run.run, reference(MANY))
    assert started_twice(run.run) == []


@pytest.mark.slow
@pytest.mark.timeout(600, func_only=True)
def test_a_run_on_six_nodes_shrinks_is_preempted_and_grows(
    slurm: SlurmCluster, reference: Callable[[int], Whole]
) -> None:
    third, fourth = [slurm.preempt(node) for node in slurm.gpu_nodes[2:4]]
    run = SlurmRun.submit(slurm, on_six())
    (workers,) = run.jobs("workers")
    run.wait_steps(2)
    assert changes_of(run.run) == [] and "on 4 of 2-6 nodes" in hpcrl(slurm, "status", str(run.run.root)).stdout
    third.end()
    wait_change(run, 4, 5)
    fourth.end()
    wait_change(run, 5, 6)
    run.wait_steps(2)

    slurm.node_down(slurm.gpu_nodes[0])
    wait_change(run, 6, 5)
    run.wait_steps(2)
    with slurm.preempt(slurm.gpu_nodes[1]):
        wait_change(run, 5, 4)
        run.wait_steps(2)
        slurm.node_up(slurm.gpu_nodes[0])
    run.wait(lambda: changes_of(run.run)[-1][1] == 6, 90, "six nodes again")

    run.wait(lambda: run.verdict == "done", 120, "done")
    slurm.wait_ended(workers)
    assert_nearly_equal(run.run, reference(MANY))
    assert started_twice(run.run) == []
    assert {event.state for event in told(run.run, AttemptEnded)} == {"grown", "lost", "done"}
    slurm.wait_no_processes()

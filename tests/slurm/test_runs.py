"""Whole runs on a real Slurm, disturbed in every way that a cluster knows: they end with an undisturbed run's bits.

A run has as many steps as it is disturbed in, and some. One that is resumed for the last time does the rest at once.
"""

import contextlib
import dataclasses
import functools
import json
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.chaos import Remains, remains, started_twice
from support.slurm_cluster import SlurmCluster
from support.slurm_runs import UNDELAYED, SlurmRun, hpcrl, toy_values, undisturbed

pytestmark = pytest.mark.slurm
FEW, SOME, MANY = 12, 22, 30
Reference = Callable[[SlurmRun], Remains]


@pytest.fixture(scope="module")
def reference(slurm_is_up: None, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """What a run of as many steps leaves that nobody disturbs."""
    of_steps = functools.cache(lambda steps: undisturbed(tmp_path_factory.mktemp("reference"), steps))
    return lambda run: of_steps(run.run.configuration()["control"]["steps"])


def with_steps(steps: int, partition: str, **cluster: Any) -> dict[str, Any]:
    values = toy_values(partition, **cluster)
    values["control"]["steps"] = steps
    return values


def assert_equal(run: SlurmRun, reference: Reference) -> None:
    found = remains(run.run)
    if len(run.run.versions()) > 1:  # since it was resumed, by `UNDELAYED`
        found = dataclasses.replace(found, metrics=tuple(row | {"settings": 0} for row in found.metrics))
    assert found == reference(run)
    assert started_twice(run.run) == []


def test_an_array_survives_preemption_requeue_and_kills(slurm: SlurmCluster, reference: Reference) -> None:
    run = SlurmRun.submit(slurm, with_steps(SOME, "low"))
    (workers,) = run.jobs("workers")
    (master,) = run.jobs("master")
    run.wait_steps(2)

    with slurm.preempt(run.element_away_from_master()):
        run.wait_steps(2)
    assert run.pid("master"), "the master stayed"
    assert slurm.state(master) == "RUNNING" and len(run.run.numbers()) >= 2

    run.kill("worker-1")
    run.wait_steps(2)
    run.kill("agent-2")
    run.wait_steps(2)
    run.kill("master")
    run.wait_steps(2)
    slurm.requeue(master)
    run.wait_steps(2)

    run.wait_done()
    assert_equal(run, reference)
    states = slurm.states(master, workers)
    assert set(states.values()) == {"COMPLETED"}, states


@pytest.mark.slow
def test_an_array_survives_a_dead_node_the_loss_of_all_and_a_cancel(slurm: SlurmCluster, reference: Reference) -> None:
    run = SlurmRun.submit(slurm, with_steps(SOME, "low"))
    (workers,) = run.jobs("workers")
    (master,) = run.jobs("master")
    run.wait_steps(2)

    (node,) = slurm.job_nodes(run.element_away_from_master())
    slurm.node_down(node)
    run.wait_steps(2)
    slurm.node_up(node)

    run.kill("master", "agent-0", "agent-1", "agent-2", "agent-3")
    run.wait_steps(2)

    slurm.scancel(master, workers)
    slurm.wait_ended(master, workers)
    slurm.wait_no_processes()
    hpcrl(slurm, "resume", str(run.run.root))
    run.wait_steps(1)
    run.kill("master", with_signal=signal.SIGTERM)

    run.wait_done()
    assert_equal(run, reference)


@pytest.mark.slow
def test_an_array_survives_a_preemption_with_grace_and_one_of_all_its_elements(
    slurm: SlurmCluster, reference: Reference
) -> None:
    values = with_steps(FEW, "lowgrace")
    # All on nodes where the master is not.
    values["cluster"]["slurm"]["flags"] = ["--gres=gpu:1"]
    run = SlurmRun.submit(slurm, values)
    (workers,) = run.jobs("workers")
    (master,) = run.jobs("master")
    run.wait_steps(2)
    with slurm.preempt(f"{workers}_1"):
        slurm.wait(lambda: len(run.run.numbers()) >= 2, "another attempt", timeout_s=60)
    run.wait_steps(2)
    with slurm.preempt(workers):
        slurm.wait(lambda: len(run.run.numbers()) > 2, "another attempt", timeout_s=60)
    run.wait_done()
    assert_equal(run, reference)
    assert slurm.state(master) == "COMPLETED" and run.jobs("workers") == [workers]
    ends = [json.loads(path.read_text()) for path in run.run.submission.glob("*/exits/workers-*")]
    assert {end["cause"] for end in ends} <= {"preempted", "drained", "lost_peers", "done"}, ends


def test_stop_leaves_nothing_behind_and_resume_goes_on(slurm: SlurmCluster, reference: Reference) -> None:
    run = SlurmRun.submit(slurm, with_steps(SOME, "low"))
    run.wait_steps(2)
    stopped = hpcrl(slurm, "stop", str(run.run.root))
    assert "hpcrl resume" in stopped.stdout
    slurm.wait_no_processes()
    assert set(slurm.states(*run.jobs("master"), *run.jobs("workers")).values()) <= {"COMPLETED", "FAILED"}
    said = hpcrl(slurm, "status", str(run.run.root)).stdout
    assert "stopped" in said
    hpcrl(slurm, "resume", str(run.run.root), *UNDELAYED)
    run.wait_done()
    assert_equal(run, reference)


def test_jobs_that_were_sent_by_hand_are_known_when_they_begin_and_ended_when_they_wait(
    slurm: SlurmCluster, reference: Reference
) -> None:
    run = SlurmRun.submit(slurm, with_steps(SOME, "low"))
    run.wait_steps(2)
    (script,) = run.run.submission.glob("*/workers.sbatch")
    element = run.element_away_from_master()
    slurm.scancel(element)
    slurm.wait_ended(element)
    number = element.partition("_")[2]
    by_hand = slurm.run(["sbatch", "--parsable", f"--array={number}", str(script)]).stdout.strip()
    run.wait_steps(2)
    assert run.jobs("workers") == [element.partition("_")[0], by_hand]
    assert f"workers {by_hand}: 1 running" in hpcrl(slurm, "status", str(run.run.root)).stdout

    waiting = slurm.run(["sbatch", "--parsable", "--hold", f"--array={number}", str(script)]).stdout.strip()
    hpcrl(slurm, "stop", str(run.run.root))
    hpcrl(slurm, "resume", str(run.run.root), *UNDELAYED)
    assert set(slurm.wait_ended(waiting).values()) == {"CANCELLED"}
    run.wait_done()
    assert_equal(run, reference)


@pytest.mark.slow
def test_a_site_that_cancels_what_it_preempts_gets_a_successor(slurm: SlurmCluster, reference: Reference) -> None:
    run = SlurmRun.submit(slurm, with_steps(FEW, "cancels"))
    run.wait_steps(2)
    with slurm.preempt(run.element_away_from_master()):
        run.wait_steps(2)
    assert len(run.jobs("workers")) == 2
    run.wait_done()
    assert_equal(run, reference)


def test_a_node_that_fails_where_requeue_is_forbidden_gets_a_successor(
    slurm: SlurmCluster, reference: Reference
) -> None:
    values = with_steps(FEW, "low")
    values["cluster"]["slurm"]["flags"] = ["--no-requeue"]
    run = SlurmRun.submit(slurm, values)
    run.wait_steps(2)
    (node,) = slurm.job_nodes(run.element_away_from_master())
    slurm.node_down(node)
    run.wait_steps(2)
    assert len(run.jobs("workers")) > 1
    slurm.node_up(node)
    run.wait_done()
    assert_equal(run, reference)


@pytest.mark.slow
def test_a_run_that_lost_an_element_for_good_ends_at_once_and_says_why(
    slurm: SlurmCluster, reference: Reference
) -> None:
    run = SlurmRun.submit(slurm, with_steps(SOME, "low"))
    run.wait_steps(2)
    (workers,) = run.jobs("workers")
    slurm.scancel(f"{workers}_2")
    slurm.wait_ended(*run.jobs("master"), workers, timeout_s=60)
    assert run.verdict == "failed"
    assert f"node 2: job {workers}_2 was cancelled. `hpcrl resume" in hpcrl(slurm, "status", str(run.run.root)).stdout
    slurm.wait_no_processes()
    hpcrl(slurm, "resume", str(run.run.root), *UNDELAYED)
    run.wait_done()
    assert_equal(run, reference)


@pytest.mark.parametrize("topology", [pytest.param("colocated", marks=pytest.mark.slow), "hetjob"])
def test_jobs_that_start_together_come_back_together(slurm: SlurmCluster, reference: Reference, topology: str) -> None:
    values = with_steps(SOME, "lowgrace" if topology == "hetjob" else "low", topology=topology)
    values["cluster"]["slurm"]["master_partition"] = values["cluster"]["slurm"]["partition"]
    run = SlurmRun.submit(slurm, values)
    (job,) = run.jobs("run")
    run.wait_steps(2)
    run.kill("worker-1")
    run.wait_steps(2)
    run.kill("agent-1")
    run.wait_steps(2, timeout_s=120)
    with slurm.preempt(slurm.job_nodes(job)[-1]):
        run.wait_steps(2, timeout_s=120)
    run.kill("master")
    run.wait_steps(2)
    slurm.requeue(job)
    run.wait_done()
    assert_equal(run, reference)


@pytest.mark.slow
def test_a_job_whose_batch_step_was_killed_comes_back_or_ends_and_is_never_left_empty(slurm: SlurmCluster) -> None:
    """Slurm itself notices at the next registration of the node: after half an hour, on the test cluster a minute."""
    values = with_steps(FEW, "low", topology="hetjob")
    values["toy"]["delay_s"] = 0.3  # it is not to be done before it is struck
    run = SlurmRun.submit(slurm, values)
    (job,) = run.jobs("run")
    run.wait_steps(2)
    master = run.pid("master")
    slurm.kill_batch_step(job, script=True)
    with contextlib.suppress(ProcessLookupError):  # Slurm may have been quicker
        os.kill(master, signal.SIGTERM)
    run.wait_steps(2)
    slurm.kill_batch_step(job, script=False)
    run.wait_done()
    assert " Restarts=1 " in slurm.run(["scontrol", "show", "job", job]).stdout
    assert set(slurm.states(job).values()) == {"CANCELLED"}


@pytest.mark.slow
def test_the_time_limit_of_each_job_is_one_more_turn_in_the_queue(slurm: SlurmCluster, reference: Reference) -> None:
    values = with_steps(MANY, "low")
    values["toy"]["delay_s"] = 0.6
    # Slurm warns up to a minute early, and not at all if less than that is left.
    values["cluster"]["slurm"] |= {"time": "2", "signal_lead_s": 30}
    run = SlurmRun.submit(slurm, values)
    run.wait_done(timeout_s=280)
    assert len(run.run.numbers()) > 1, "the limit was never reached"
    assert_equal(run, reference)


@pytest.mark.slow
def test_processes_of_a_node_that_slurm_has_given_up_change_nothing(slurm: SlurmCluster, reference: Reference) -> None:
    """Split brain: slurmd dies, its jobs live on, and Slurm starts their successors elsewhere."""
    values = with_steps(MANY, "low")
    values["toy"]["delay_s"] = 0.6
    run = SlurmRun.submit(slurm, values)
    run.wait_steps(2)
    (node,) = slurm.job_nodes(run.element_away_from_master())
    slurm.kill_slurmd(node)
    slurm.wait(lambda: len(run.run.numbers()) > 1, "another attempt", timeout_s=90)
    run.wait_steps(2)
    slurm.restart()
    run.wait_done()
    assert_equal(run, reference)


@pytest.mark.slow
@pytest.mark.timeout(900)  # twenty times Slurm's hold of a requeued job, and a start
def test_a_run_survives_twenty_disturbances_at_random(slurm: SlurmCluster, reference: Reference) -> None:
    values = with_steps(MANY, "low")
    values["toy"]["delay_s"] = 0.4
    run = SlurmRun.submit(slurm, values)
    chance = random.Random(int(os.environ.get("HPCRL_SEED", "1")))
    struck = 0
    for number in range(20):
        # Three attempts in a row that make nothing would be the last: every other disturbance lets the run get on.
        if number % 2:
            wait_for_a_step_or_the_end(run)
        else:
            time.sleep(chance.uniform(0.5, 6.0))
        if run.verdict == "done":
            break
        if run.verdict == "failed":
            resume(run)
        with contextlib.suppress(AssertionError, ProcessLookupError):
            disturb(run, chance)
            struck += 1
    wait_for_the_end(run)
    if run.verdict == "failed":
        resume(run)
    run.wait_done()
    assert struck >= 10
    assert_equal(run, reference)


def disturb(run: SlurmRun, chance: random.Random) -> None:
    """Once, in one of eight ways. Raises AssertionError where there is nothing that could be disturbed in this way."""
    workers = run.jobs("workers")[-1]
    match chance.randrange(8):
        case 0:
            with run.cluster.preempt(run.element_away_from_master()):
                time.sleep(2)
        case 1:
            run.cluster.requeue(run.jobs("master")[-1])
        case 2:
            run.cluster.requeue(f"{workers}_{chance.randrange(4)}")
        case 3:
            run.kill("master")
        case 4:
            run.kill(f"agent-{chance.randrange(4)}")
        case 5:
            run.kill(f"worker-{chance.randrange(4)}")
        case 6:
            run.kill("master", with_signal=signal.SIGTERM)
        case 7:
            run.kill(f"agent-{chance.randrange(4)}", with_signal=signal.SIGTERM)


def wait_for_a_step_or_the_end(run: SlurmRun) -> None:
    aim = run.steps + 1
    run.wait(lambda: run.steps >= aim or run.verdict in ("done", "failed"), 120, "a step")


def wait_for_the_end(run: SlurmRun) -> None:
    run.wait(lambda: run.verdict in ("done", "failed"), 240, "the end")


def resume(run: SlurmRun) -> None:
    """As who was hit too often is resumed by hand, once its jobs are over."""
    jobs = run.jobs("master")[-1], run.jobs("workers")[-1]
    run.cluster.wait_ended(*jobs)
    run.cluster.wait_no_processes()
    before = run.run.newest_attempt()
    hpcrl(run.cluster, "resume", str(run.run.root))
    run.wait(lambda: run.run.newest_attempt() != before, 120, "another attempt")

"""Why attempts ended on a real Slurm, from the run directory alone, once a cluster has disturbed them.

Scenes run at the same time, each with a run of its own; those that disturb nodes have these for themselves. What is
advised is done, and the run gets further.
"""

import contextlib
import os
import re
import signal
import subprocess
from typing import Any

import pytest
from support.chaos import wait_until
from support.connections import cut
from support.failures import small_disk
from support.hosts import write_task
from support.memory_group import TAKES_ALL
from support.slurm_cluster import SlurmCluster
from support.slurm_runs import hpcrl, toy_values
from support.slurm_told import START, Scene, played

from hpcrl.inspect.logs import LogFilter, merged
from hpcrl.inspect.views.why import cause_of

pytestmark = pytest.mark.slurm
HEAD = "def ones(prompt, response, row):\n"


def toy(scene: Scene, nodes: int, where: str, partition: str = "low", **cluster: Any) -> dict[str, Any]:
    """A toy run on `cpu` nodes, or on `gpu` nodes each of which it has for itself."""
    values = toy_values(partition, nodes=nodes, lost_after_s=6.0, **cluster)
    others = scene.slurm.gpu_nodes if where == "cpu" else scene.slurm.cpu_nodes
    values["control"]["steps"] = 400
    values["cluster"]["slurm"] |= {"exclude": ",".join(others), "cpus_per_worker": 8 if where == "gpu" else 2}
    if nodes == 1:
        values["critic"] = values["reward"] = {}
    if cluster.get("topology") != "colocated":
        # An exclusion is of all jobs, and masters are on CPU nodes.
        values["cluster"]["slurm"] |= {"exclude": None, "flags": [f"--exclude={','.join(others)}"]}
    return values


def ppo(scene: Scene, reward: str, **cluster: Any) -> dict[str, Any]:
    """PPO of a tiny model on one CPU node, scored by this function, which is not tried before the start."""
    folder = scene.slurm.directory
    write_task(folder)
    (folder / "reward.py").write_text(reward)
    values = toy(scene, 1, "cpu", topology="colocated", **cluster)
    for name in ("toy", "critic", "reward"):
        del values[name]
    model = {"path": str(folder / "model"), "optimizer": {"lr": 0.01}}
    return values | {
        "algorithm": "ppo",
        "control": {"steps": 2},
        "data": {"train": str(folder / "rows.jsonl"), "batch_size": 4},
        "actor": model,
        "critic": model,
        "reference": {"path": str(folder / "model")},
        "reward": {"function": f"{folder / 'reward.py'}:ones", "trial_rows": 0},
        "generation": {"max_new_tokens": 6, "slots": 4},
    }


# ── at once ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def an_array_that_is_disturbed(scene: Scene) -> None:
    run = scene.submit(toy(scene, 3, "gpu"))
    run.wait_steps(1)
    (workers,) = run.jobs("workers")
    with contextlib.ExitStack() as preempting:
        victim = f"{workers}_2"
        scene.after("preempted", "", lambda: preempting.enter_context(scene.slurm.preempt(victim)), "preempted")
    scene.after("node failure", "worker-1", lambda: run.kill("worker-1"), "a worker killed")
    (node,) = scene.slurm.job_nodes(f"{workers}_1")
    scene.after("node failure", "agent-1", lambda: scene.slurm.node_down(node), "its node set down")
    scene.slurm.node_up(node)
    scene.after("hang", "worker-0", lambda: os.kill(run.pid("worker-0"), signal.SIGSTOP), "a worker stopped")
    number = scene.newest
    hpcrl(scene.slurm, "stop", str(run.run.root), check=False)
    scene.wait_over()
    scene.see("hpcrl stop", number, "cancelled")
    said = hpcrl(scene.slurm, "inspect", str(run.run.root), "why").stdout
    assert "cause    cancelled (certain)" in said and "the run went on in attempt" in said
    # What the job of the preempted node printed stands where that was, though the job's file was written to until now.
    (line,) = merged(run.run, LogFilter(frozenset({"agent-2"}), re.compile("JOB .* DUE TO PREEMPTION")))
    claim = run.run.read_claim(2)
    assert claim is not None and line.time < claim.time


def a_reward_that_takes_all_memory_then_fails_then_is_right(scene: Scene) -> None:
    scene.submit(ppo(scene, HEAD + TAKES_ALL))
    scene.wait_over()
    told = scene.see("out of memory", scene.newest, "host memory", "worker-0")
    scene.assert_agree()

    reward = scene.slurm.directory / "reward.py"
    reward.write_text(HEAD + "    return row['label']\n")
    changed = ("--cluster.slurm.memory", "2G", "--accept-changed", "reward.function")
    scene.follow(told, *changed)
    scene.wait_over()
    told = scene.see("a reward raises", scene.newest, "user's code", "worker-0", "'label'")

    reward.write_text(HEAD + "    return 1.0\n")
    scene.follow(told)
    scene.wait_done()
    scene.see("undisturbed", scene.newest, "")


def a_disk_that_is_full(scene: Scene) -> None:
    values = toy(scene, 1, "cpu", topology="colocated")
    values["toy"]["delay_s"] = 0.0
    values["control"]["steps"] = 2000
    where = scene.slurm.directory / "run"
    with small_disk(where):
        run = scene.submit(values)
        scene.wait_over()
        told = scene.see("full disk", scene.newest, "disk", None)
        use = scene.follow(told).stdout.splitlines()[-1].split()[4]
        assert int(use.removesuffix("%")) > 90
        subprocess.run(["mount", "-o", "remount,size=64m", str(where)], check=True)
        hpcrl(scene.slurm, "resume", str(run.run.root), "--control.steps", str(run.steps + 3))
        scene.wait_done()
        scene.see("more room", scene.newest, "")


def a_job_that_waits_and_lacks_a_program(scene: Scene) -> None:
    values = toy(scene, 1, "cpu", topology="colocated")
    values["control"]["steps"] = 2
    values["cluster"]["slurm"] |= {"flags": ["--hold"], "wrap": ["apptainer-of-nowhere", "exec"]}
    run = scene.submit(values)
    told = scene.see("held", START, "waiting for Slurm")
    assert "JobHeldUser" in scene.follow(told).stdout
    (job,) = run.jobs("run")
    scene.slurm.run(["scontrol", "release", job])
    scene.wait_over()
    told = scene.see("no such program", START, "configuration", "master", "there is no apptainer-of-nowhere on")
    scene.assert_agree()
    changed = ("--cluster.slurm.wrap", "[]", "--cluster.slurm.flags", "[]")
    scene.follow(told, *changed, drop=["--SECTION.SETTING", "VALUE"])
    scene.wait_done()
    scene.see("undisturbed", scene.newest, "")


def an_array_whose_elements_are_cancelled(scene: Scene) -> None:
    run = scene.submit(toy(scene, 2, "cpu"))
    run.wait_steps(1)
    number, workers = scene.newest, run.jobs("workers")
    scene.slurm.scancel(*workers)
    scene.wait_over()
    scene.see("elements cancelled", number, "cancelled")
    scene.see("waited in vain for them", scene.newest, "cancelled")


def test_what_happens_to_runs_on_slurm_is_told_rightly(slurm: SlurmCluster) -> None:
    scenes = (
        an_array_that_is_disturbed,
        a_reward_that_takes_all_memory_then_fails_then_is_right,
        a_disk_that_is_full,
        a_job_that_waits_and_lacks_a_program,
        an_array_whose_elements_are_cancelled,
    )
    played(slurm, *scenes).assert_right()


# ── with more time ────────────────────────────────────────────────────────────────────────────────────────────────────
def an_array_whose_processes_are_killed(scene: Scene) -> None:
    run = scene.submit(toy(scene, 3, "gpu"))
    run.wait_steps(1)
    (master,), (workers,) = run.jobs("master"), run.jobs("workers")
    scene.after("node failure", "agent-2", lambda: run.kill("agent-2"), "an agent killed")
    scene.after("node failure", "master", lambda: run.kill("master"), "the master killed")
    scene.after("preempted", "", lambda: run.kill("master", with_signal=signal.SIGTERM), "SIGTERM to the master")
    scene.after("preempted", "", lambda: scene.slurm.requeue(master), "the master requeued")
    scene.after("preempted", "", lambda: scene.slurm.requeue(f"{workers}_0"), "an element requeued")
    (node,) = scene.slurm.job_nodes(f"{workers}_1")

    def lose_power() -> None:
        scene.slurm.power_off(node)
        wait_until(lambda: scene.newest > number, 60, "another attempt")
        scene.slurm.restart()

    number = scene.newest
    scene.after("node failure", "agent-1", lose_power, "its node lost power")
    number = scene.newest
    scene.slurm.scancel(master, workers)
    scene.wait_over()
    scene.see("all cancelled", number, "cancelled")


def a_node_whose_slurmd_dies(scene: Scene) -> None:
    """Its processes live on, and Slurm starts their successors elsewhere."""
    run = scene.submit(toy(scene, 1, "gpu", topology="array"))
    run.wait_steps(1)
    (node,) = scene.slurm.job_nodes(f"{run.jobs('workers')[0]}_0")
    scene.after("node failure", "agent-0", lambda: scene.slurm.kill_slurmd(node), "slurmd killed")
    hpcrl(scene.slurm, "stop", str(run.run.root), check=False)
    scene.slurm.restart()
    scene.wait_over()


def one_job_that_is_preempted_and_fails(scene: Scene) -> None:
    run = scene.submit(toy(scene, 1, "gpu", topology="colocated"))
    run.wait_steps(1)
    (job,) = run.jobs("run")

    def is_taken() -> None:
        with scene.slurm.preempt(job):
            pass

    def node_fails() -> None:
        (node,) = scene.slurm.job_nodes(job)
        scene.slurm.node_down(node)
        scene.slurm.wait(lambda: scene.slurm.state(job) != "RUNNING", "its job is lost")
        scene.slurm.node_up(node)

    scene.after("preempted", "", is_taken, "preempted")
    scene.after("node failure", "master", node_fails, "its node set down")
    scene.slurm.scancel(job)
    scene.wait_over()


def a_job_whose_time_is_over(scene: Scene) -> None:
    values = toy(scene, 1, "cpu", topology="colocated")
    values["cluster"]["slurm"] |= {"time": "2", "signal_lead_s": 20}
    run = scene.submit(values)
    run.wait_steps(1)
    wait_until(lambda: scene.newest > 0, 180, "the next job")
    scene.see("warned of its limit", 0, "time limit")
    hpcrl(scene.slurm, "stop", str(run.run.root), "--now", check=False)
    scene.wait_over()


def a_reward_that_never_returns(scene: Scene) -> None:
    values = ppo(scene, f"import time\n\n{HEAD}    time.sleep(3600)\n", stalled_after_s=1.0)
    values["reward"]["timeout_s"] = 3600
    run = scene.submit(values)

    def stacks() -> bool:
        cause = cause_of(run.run, 0) if run.run.numbers() else None
        return cause is not None and "reward.py" in cause.frames

    wait_until(stacks, 120, "the stacks of a call that stalls")
    told = scene.see("a reward never returns", 0, "hang", "worker-0", "reward.py")
    assert "stalled" in scene.follow(told).stdout
    hpcrl(scene.slurm, "stop", str(run.run.root), "--now", check=False)
    scene.wait_over()
    scene.see("hpcrl stop --now", 0, "cancelled")


def data_that_changes_while_the_job_waits(scene: Scene) -> None:
    values = ppo(scene, f"{HEAD}    return 1.0\n")
    values["cluster"]["slurm"]["flags"] = ["--begin=now+1hour"]
    run = scene.submit(values)
    told = scene.see("begins later", START, "waiting for Slurm")
    assert "BeginTime" in scene.follow(told).stdout
    rows = scene.slurm.directory / "rows.jsonl"
    rows.write_text(rows.read_text().replace("=", "=="))
    scene.slurm.run(["scontrol", "update", f"JobId={run.jobs('run')[0]}", "StartTime=now"])
    scene.wait_over()
    told = scene.see("data that changed", scene.newest, "data", "master", "rows.jsonl")
    scene.follow(told, "--cluster.slurm.flags", "[]")
    scene.wait_done()
    scene.see("undisturbed", scene.newest, "")


def nodes_that_do_not_reach_the_master(scene: Scene) -> None:
    wrapper = scene.slurm.directory / "cut-off"
    wrapper.write_text('#!/bin/bash\n[[ ${*: -1} = agent ]] && exec unshare --net "$@"\nexec "$@"\n')
    wrapper.chmod(0o700)
    values = toy(scene, 1, "cpu", topology="array", start_timeout_s=8.0)
    values["cluster"]["slurm"]["wrap"] = [str(wrapper)]
    run = scene.submit(values)
    wait_until(lambda: run.run.numbers() and cause_of(run.run, 0), 120, "the end of the first attempt")
    told = scene.see("no way to the master", 0, "communication", "")
    scene.slurm.scancel(*run.jobs("master"), *run.jobs("workers"))
    scene.wait_over()
    assert "2 of 2 answered" in scene.follow(told, "--partition", "low").stdout


def workers_of_models_that_are_cut_off(scene: Scene) -> None:
    values = ppo(scene, f"{HEAD}    return 1.0\n", workers_per_node=2)
    values["control"]["steps"] = 400
    run = scene.submit(values)
    run.wait_steps(1)
    scene.after("communication", None, lambda: cut([run.pid("worker-0"), run.pid("worker-1")]), "connections cut")
    hpcrl(scene.slurm, "stop", str(run.run.root), "--now", check=False)
    scene.wait_over()


def nodes_without_what_the_run_needs(scene: Scene) -> None:
    """A program is missing on the workers' nodes alone."""
    wrapper = scene.slurm.directory / "there"
    wrapper.write_text('#!/bin/bash\n[[ ${*: -1} = agent ]] && exit 127\nexec "$@"\n')
    wrapper.chmod(0o700)
    values = toy(scene, 1, "cpu", topology="array")
    values["cluster"]["slurm"]["wrap"] = [str(wrapper)]
    scene.submit(values)
    scene.wait_over()
    scene.see("a program is missing on a node", scene.newest, "configuration", "agent-0")


@pytest.mark.slow
@pytest.mark.timeout(600, func_only=True)
def test_what_takes_longer_to_happen_is_told_rightly_too(slurm: SlurmCluster) -> None:
    scenes = (
        an_array_whose_processes_are_killed,
        one_job_that_is_preempted_and_fails,
        a_job_whose_time_is_over,
        a_reward_that_never_returns,
        data_that_changes_while_the_job_waits,
        nodes_that_do_not_reach_the_master,
        nodes_without_what_the_run_needs,
        workers_of_models_that_are_cut_off,
    )
    told = played(slurm, *scenes)
    played(slurm, a_node_whose_slurmd_dies, told=told).assert_right()

"""The kernel kills for want of memory: who says that a process was killed says so."""

from pathlib import Path

from support.chaos import begin, create_run, outputs, rows_of, toy_experiment
from support.faults import Strikes
from support.hosts import write_task
from support.memory_group import TAKES_ALL, Hog, InGroup, memory_group
from support.tiny_ppo import tiny_ppo

from hpcrl.errors import ExitCode


def test_a_worker_that_the_kernel_kills_is_lost_for_want_of_memory(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", toy_experiment(lost_after_s=20.0, start_timeout_s=60.0, orphan_timeout_s=20.0))
    hog = Hog(tmp_path, "hog", "worker-1", "worker.call", "KILL", always=True)
    with memory_group(512 << 20) as group:
        jobs = begin(run, "first", Strikes((InGroup(group), hog)))
        assert jobs.wait_for("master", 120) == ExitCode.NEVER_REQUEUE, outputs(run)
        jobs.kill_all()
    out_of_memory = "worker-1: killed by SIGKILL, out of memory: the kernel has killed in this job"
    endings = [row["reason"] for row in rows_of(run.events(0)) if row["event"] == "ending"]
    assert len(endings) == 1 and endings[0].startswith(out_of_memory), endings
    verdict = run.newest_verdict()
    assert verdict is not None and "3 attempts in a row finished no call" in verdict.reason
    assert out_of_memory in verdict.reason and "cluster.slurm.memory" in verdict.reason


def test_a_reward_function_that_the_kernel_kills_is_out_of_memory_and_no_error_of_the_user(tmp_path: Path) -> None:
    write_task(tmp_path)
    (tmp_path / "reward.py").write_text("def ones(prompt, response, row):\n" + TAKES_ALL)
    limits = {"lost_after_s": 30.0, "start_timeout_s": 60.0, "orphan_timeout_s": 30.0}
    run = create_run(tmp_path / "run", tiny_ppo(tmp_path, steps=1, nodes=1, workers=1, **limits))
    with memory_group(1 << 30) as group:
        jobs = begin(run, "first", InGroup(group))
        assert jobs.wait_for("master", 120) == ExitCode.INTERNAL, outputs(run)
        jobs.kill_all()
    verdict = run.newest_verdict()
    assert verdict is not None and verdict.state == "failed"
    assert "out of memory: the kernel has killed" in verdict.reason, verdict.reason

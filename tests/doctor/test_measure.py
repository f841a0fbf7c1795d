"""All that is measured: on a Slurm that refuses, is silent or lets the job wait, and without one."""

import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.fake_slurm.cluster import FakeSlurm

from hpcrl.doctor.check import check
from hpcrl.doctor.measure import MeasureRequest, measure
from hpcrl.doctor.measure_nodes import JobRequest
from hpcrl.doctor.report import exit_status
from hpcrl.errors import ConfigurationError


@pytest.fixture
def fake(tmp_path) -> FakeSlurm:
    return FakeSlurm(tmp_path / "slurm")


@pytest.fixture
def root(tmp_path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def severities(measured) -> dict[str, str]:
    return {finding.what: str(finding.severity) for finding in check(measured)}


def test_the_nodes_answer_through_the_folder(fake, root):
    """The fake runs no job: this test does what the job's srun would do."""

    def step() -> None:
        while not (scripts := list(root.glob("*/doctor.sbatch"))) or not fake.state["jobs"]:
            time.sleep(0.05)
        fake.run(100)
        command = shlex.split(scripts[0].read_text().splitlines()[-1])[3:]
        tasks = [subprocess.Popen([*command, "--index", str(index), "--count", "2"]) for index in (0, 1)]
        for task in tasks:
            task.wait()
        fake.end(100, "COMPLETED")

    thread = threading.Thread(target=step)
    thread.start()
    measured = measure(MeasureRequest(root), fake.environment, fake.commands())
    thread.join()
    assert len(measured.nodes) == 2 and measured.job.failed == ""
    assert "problem" not in severities(measured).values()
    assert list(root.iterdir()) == []
    asked = [call[0] for call in fake.state["calls"]]
    assert asked.count("sbatch") == 1
    assert len([name for name in asked if name != "squeue"]) <= 6, "squeue is asked as long as it takes"


def test_a_job_that_stays_in_the_queue_is_cancelled_and_the_reason_told(fake, root):
    plan = MeasureRequest(root, wanted=JobRequest(wait_s=0.3))
    measured = measure(plan, fake.environment, fake.commands())
    assert "has not started within 0 s (Priority)" in measured.job.failed
    assert severities(measured)["asked"] == "warning"
    assert exit_status(check(measured)) == 1
    assert [job["state"] for job in fake.state["jobs"]] == ["CANCELLED"]
    assert list(root.iterdir()) == []


def test_a_controller_that_goes_away_meanwhile_is_waited_for(fake, root):
    fake.plan("squeue", "refuse", "lose", words="slurm_load_jobs error: Socket timed out on send/recv operation")
    measured = measure(MeasureRequest(root, wanted=JobRequest(wait_s=0.3)), fake.environment, fake.commands())
    assert "has not started within 0 s" in measured.job.failed
    assert [job["state"] for job in fake.state["jobs"]] == ["CANCELLED"]


def test_a_job_that_ends_without_results_is_a_problem(fake, root):
    def fail() -> None:
        while not fake.state["jobs"]:
            time.sleep(0.05)
        (folder,) = root.iterdir()
        (folder / "job.out").write_text("srun: error: no such python\n")
        fake.end(100, "FAILED", 2)

    thread = threading.Thread(target=fail)
    thread.start()
    measured = measure(MeasureRequest(root), fake.environment, fake.commands())
    thread.join()
    assert measured.job.said == "srun: error: no such python"
    assert exit_status(check(measured)) == 2


def test_a_refused_job_is_a_problem_in_slurms_words(fake, root):
    measured = measure(MeasureRequest(root, wanted=JobRequest(partition="gone")), fake.environment, fake.commands())
    assert "Invalid partition name" in measured.job.failed
    assert severities(measured)["asked"] == "problem"


def test_a_job_whose_answer_got_lost_is_found_and_not_sent_twice(monkeypatch, fake, root):
    monkeypatch.setattr("hpcrl.launch.slurm.submission.SETTLE_S", (0.0,))
    fake.plan("sbatch", "lose after")
    measured = measure(MeasureRequest(root, wanted=JobRequest(wait_s=0.3)), fake.environment, fake.commands())
    assert measured.job.id == "100"
    assert [job["state"] for job in fake.state["jobs"]] == ["CANCELLED"]


def test_a_controller_that_is_away_leaves_the_rest_to_be_checked(fake, root):
    fake.away(1000)
    measured = measure(MeasureRequest(root), fake.environment, fake.commands())
    assert measured.slurm is None and measured.slurm_silent
    assert [node.index for node in measured.nodes] == [0]
    assert severities(measured)["Slurm"] == "warning"


def test_without_slurm_this_machine_is_checked(monkeypatch, tmp_path, root):
    measured = measure(MeasureRequest(root), {"PATH": str(tmp_path)})
    assert measured.slurm is None and not measured.slurm_silent and measured.job is None
    assert severities(measured)["Slurm"] == "note"
    assert len(measured.nodes) == 1


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"run-root.*gone"):
        measure(MeasureRequest(tmp_path / "gone"), {"PATH": ""})


def test_in_job_wants_a_job(root):
    with pytest.raises(ConfigurationError, match="SLURM_JOB_ID"):
        measure(MeasureRequest(root, "in job"), {"PATH": ""})


def test_a_task_that_another_one_speaks_for_says_nothing(root):
    environ = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "PATH": ""}
    command = [sys.executable, "-m", "hpcrl.cli.main", "doctor", "--in-job", "--run-root", str(root)]
    tasks = [
        subprocess.Popen(command, env=environ | {"SLURM_PROCID": str(index)}, stdout=subprocess.PIPE, text=True)
        for index in (0, 1)
    ]
    first, second = (task.communicate(timeout=60)[0] for task in tasks)
    assert [task.returncode for task in tasks] == [0, 0], first
    assert "2 of 2 answered" in first
    assert second == ""

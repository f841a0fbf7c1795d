"""The doctor's job, its text and options, and who it is inside a job."""

import shlex
from pathlib import Path

import pytest

from hpcrl.config.slurm import SlurmConfig
from hpcrl.doctor.measure_nodes import JobRequest, folder_in_job, is_step, render


@pytest.fixture
def root(tmp_path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def test_the_job_is_two_nodes_for_a_moment():
    text, options = render(JobRequest(), SlurmConfig(python="/opt/python"), Path("/runs/.hpcrl-doctor-1"))
    assert options == (
        "--job-name=hpcrl-doctor", "--comment=hpcrl:.hpcrl-doctor-1", "--chdir=/runs/.hpcrl-doctor-1",
        "--output=job.out", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", "--time=10", "--no-requeue",
    )  # fmt: skip
    assert text.splitlines()[-1] == (
        "exec srun --kill-on-bad-exit=0 /opt/python -m hpcrl.doctor.probe /runs/.hpcrl-doctor-1"
    )


def test_the_job_gets_what_the_site_needs():
    config = SlurmConfig(
        account="lab", partition="gpu", qos="short", gpu_type="a100", gpus="gres", prologue=("module load cuda",),
        export=("LD_LIBRARY_PATH",), exclude="bad1",
    )  # fmt: skip
    text, options = render(JobRequest(4, gpus=8), config, Path("/runs/x"))
    assert {
        "--nodes=4", "--account=lab", "--partition=gpu", "--qos=short", "--gres=gpu:a100:8", "--exclude=bad1",
        "--export=PATH,HOME,USER,LD_LIBRARY_PATH",
    } <= set(options)  # fmt: skip
    assert "module load cuda" in text.splitlines()
    _, elsewhere = render(JobRequest(partition="cpu"), config, Path("/runs/x"))
    assert "--partition=cpu" in elsewhere and "--qos=short" not in elsewhere


def test_odd_characters_in_paths_survive():
    folder = Path("/runs/it's $HOME")
    text, options = render(JobRequest(), SlurmConfig(), folder)
    assert shlex.split(text.splitlines()[-1])[-1] == str(folder)
    assert f"--chdir={folder}" in options


def test_a_step_is_told_from_a_batch_script_and_from_a_shell():
    assert is_step({"SLURM_STEP_ID": "0"})
    assert not is_step({})
    assert not is_step({"SLURM_STEP_ID": "4294967290"})


def test_tasks_of_a_step_share_a_folder_and_shells_do_not(root):
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    assert folder_in_job(step | {"SLURM_PROCID": "1"}, root) == folder_in_job(step | {"SLURM_PROCID": "0"}, root)
    again = step | {"SLURM_RESTART_COUNT": "1"}
    shell = {"SLURM_JOB_ID": "7"}
    assert len({folder_in_job(each, root) for each in (step, again, shell)}) == 3

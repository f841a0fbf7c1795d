"""While Slurm's controller is away, every command says what there is by then and what to do, and following it helps."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.fake_slurm.cluster import FakeSlurm

from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode

TOY = "algorithm: toy\ncontrol: {steps: 2}\ncluster: {device: cpu, type: slurm, topology: array}\n"
HOURS_S = 36000.0


@pytest.fixture
def fake(tmp_path: Path) -> FakeSlurm:
    (tmp_path / "toy.yaml").write_text(TOY)
    return FakeSlurm(tmp_path / "slurm")


def hpcrl(fake: FakeSlurm, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hpcrl.cli.main", *words]
    folder = fake.folder.parent
    return subprocess.run(command, cwd=folder, env=fake.environment, capture_output=True, text=True, timeout=180)


def returns(fake: FakeSlurm) -> None:
    fake.set(away_until=0)


def test_submit_makes_nothing_while_the_controller_is_away_and_succeeds_later(fake: FakeSlurm, tmp_path: Path) -> None:
    fake.away(HOURS_S)
    said = hpcrl(fake, "submit", "toy.yaml", "--run-dir", "run")
    assert said.returncode == ExitCode.REQUEUE and "Traceback" not in said.stderr
    assert "slurmctld does not answer" in said.stderr and "Nothing was made.\nSubmit it again once" in said.stderr
    assert not (tmp_path / "run").exists()
    returns(fake)
    assert hpcrl(fake, "submit", "toy.yaml", "--run-dir", "run").returncode == ExitCode.DONE
    assert len(fake.state["jobs"]) == 2


@pytest.mark.slow
def test_a_run_whose_jobs_may_have_been_sent_is_resumed_later(fake: FakeSlurm, tmp_path: Path) -> None:
    fake.plan("sbatch", "lose")
    fake.plan("squeue", "lose")
    said = hpcrl(fake, "submit", "toy.yaml", "--run-dir", "run")
    assert said.returncode == ExitCode.REQUEUE and "Traceback" not in said.stderr
    run = RunDirectory.open(tmp_path / "run")
    assert f"{run.root} is there; whether all of its jobs were sent is not known." in said.stderr
    fake.away(HOURS_S)
    said = hpcrl(fake, "resume", "run")
    assert said.returncode == ExitCode.REQUEUE and "Traceback" not in said.stderr
    assert f"Nothing was sent.\nOnce it answers: hpcrl resume {run.root}" in said.stderr
    assert run.submissions() == []
    for command in ("status", "list"):
        shown = hpcrl(fake, command, "run", "--json")
        assert shown.returncode == ExitCode.DONE, shown.stderr
        (line,) = told if isinstance(told := json.loads(shown.stdout), list) else [told]
        assert (line["state"], line["why"]) == ("incomplete", "none of its jobs is known to have been sent")
    returns(fake)
    assert hpcrl(fake, "resume", "run").returncode == ExitCode.DONE
    assert len(run.submissions()) == 1 and len(fake.state["jobs"]) == 2

"""What Slurm says of runs, in one question."""

from pathlib import Path

import pytest
from support.fake_slurm.cluster import FakeSlurm
from support.made_run import MadeRun
from support.slurm_made import made_on_slurm

from hpcrl.launch.slurm.commands import Slurm
from hpcrl.launch.slurm.queue import look

SCRIPT = "#!/bin/bash\n"


@pytest.fixture
def fake(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(tmp_path / "slurm")


def sent(fake: FakeSlurm, made: MadeRun, nonce: str) -> tuple[int, int]:
    """A master's job and an array of three, as a submission of the run."""
    script = fake.folder / "script"
    script.write_text(SCRIPT)
    slurm = fake.commands()
    master, workers = slurm.sbatch(script), slurm.sbatch(script, ["--array=0-2"])
    made.run.record_submission(nonce, {"master": master, "workers": workers})
    return int(master), int(workers)


def test_the_jobs_of_the_newest_submission_are_told(tmp_path: Path, fake: FakeSlurm) -> None:
    made = made_on_slurm(tmp_path / "run")
    sent(fake, made, "first")
    master, workers = sent(fake, made, "second")
    fake.run(master, nodes="n1")
    fake.run(workers, element=0)
    (queue,) = look([made.run], fake.commands())
    assert queue.describe() == f"master {master} running on n1; workers {workers}: 2 pending (Priority), 1 running"
    found = queue.master()
    assert found is not None and found.describe() == f"{master} running on n1"
    assert queue.sent_s_ago < 60


def test_a_successor_belongs_to_the_submission_whose_job_it_follows(tmp_path: Path, fake: FakeSlurm) -> None:
    made = made_on_slurm(tmp_path / "run")
    master, _ = sent(fake, made, "first")
    fake.end(master, "PREEMPTED")
    successor = fake.commands().sbatch(fake.folder / "script")
    made.run.record_successor("first", "master", successor)
    assert made.run.newest_nonce() == "first"
    (queue,) = look([made.run], fake.commands())
    assert f"master {master} ended (preempted)" in queue.describe()
    found = queue.master()
    assert found is not None and found.job == int(successor) and found.waits


def test_many_runs_are_one_question(tmp_path: Path, fake: FakeSlurm) -> None:
    runs = [made_on_slurm(tmp_path / f"run{number}") for number in range(3)]
    masters = [sent(fake, made, "nonce")[0] for made in runs]
    slurm = fake.commands()
    queues = look([made.run for made in runs], slurm)
    assert slurm.rpcs == 1
    assert [queue.jobs[0].job for queue in queues] == masters


def test_a_controller_that_is_away_is_named(tmp_path: Path, fake: FakeSlurm) -> None:
    made = made_on_slurm(tmp_path / "run")
    fake.away(600)
    (queue,) = look([made.run], fake.commands())
    assert queue.missing == "slurmctld does not answer"


def test_a_machine_without_squeue_says_so(tmp_path: Path, fake: FakeSlurm) -> None:
    (fake.bin / "squeue").unlink()
    made = made_on_slurm(tmp_path / "run")
    environment = fake.environment | {"PATH": str(fake.bin)}
    (queue,) = look([made.run], Slurm(environment))
    assert queue.missing == "there is no squeue in PATH"

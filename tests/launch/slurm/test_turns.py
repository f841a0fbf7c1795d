"""Another turn, or none, where it hangs by little: what Slurm forbids, loses, forgets or interrupts. On a fake one."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from launch.slurm.test_on_exit import AGENT, MASTER, NONCE, Sent
from support.fake_slurm.cluster import FakeSlurm

from hpcrl.launch.slurm.allocation import SlurmAllocation
from hpcrl.launch.slurm.commands import Slurm, SlurmError
from hpcrl.launch.slurm.jobs import JobId
from hpcrl.launch.slurm.requeue import RequeueRules
from hpcrl.launch.slurm.submission import send_successor, successor_is_under_way
from hpcrl.master.allocation import EVERYTHING

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
WAIT_S = 30.0


@pytest.fixture
def sent(tmp_path: Path) -> Sent:
    return Sent(tmp_path)


def successors(sent: Sent) -> list[tuple[int, int | None]]:
    """(job, element) of what was sent after the master and its two elements."""
    return [(job["job"], job["element"]) for job in sent.fake.state["jobs"] if job["job"] > 101]


def test_a_preempted_job_that_may_not_be_requeued_has_a_successor(tmp_path: Path) -> None:
    """Slurm cancels it then, whatever the partition's PreemptMode is."""
    sent = Sent(tmp_path, RequeueRules(requeue_allowed=False))
    with sent.fake.change() as values:
        values["jobs"][2]["preempted"] = True
    assert "a successor is submitted" in sent.settle(AGENT, 75, "TERM")
    assert [element for _, element in successors(sent)] == [1]


@pytest.mark.parametrize("fate", ["lose", "refuse"])
def test_an_element_waits_for_a_master_of_which_slurm_cannot_say_whether_it_lives(sent: Sent, fate: str) -> None:
    sent.fake.plan("squeue", fate, words="slurm_load_jobs error: Access denied")  # type: ignore[arg-type]
    assert "queued again" in sent.settle(AGENT, 75)
    assert sent.turns() == [(AGENT.number, 1)]


@pytest.mark.parametrize(("code", "told"), [(70, ()), (75, ("TERM",))], ids=["failed", "cancelled"])
def test_of_two_endings_of_one_incarnation_the_first_counts(sent: Sent, code: int, told: tuple[str, ...]) -> None:
    first = sent.settle(AGENT, code, *told)
    assert sent.settle(AGENT, 137) == first
    assert sent.turns() == []
    assert len(list((sent.run.submitit_folder(NONCE) / "exits").iterdir())) == 1


def hold(fake: FakeSlurm, command: str, folder: Path) -> None:
    """Calls of a command leave `asked` in the folder, and are answered once `answer` is there."""
    inner = folder / "inner" / command
    inner.parent.mkdir()
    (fake.bin / command).rename(inner)
    waits = f"touch '{folder}/asked'; while [ ! -e '{folder}/answer' ]; do sleep 0.02; done"
    (fake.bin / command).write_text(f"#!/bin/bash\n{waits}\nexec '{inner}' \"$@\"\n")
    (fake.bin / command).chmod(0o700)


def test_signals_that_come_while_slurm_is_asked_do_not_stop_it(sent: Sent, tmp_path: Path) -> None:
    """To queue a job again is to have it signalled."""
    hold(sent.fake, "scontrol", tmp_path)
    command = [sys.executable, "-m", "hpcrl.launch.slurm.on_exit", str(sent.run.root), NONCE, "master", "137"]
    environ = sent.fake.environment | {"SLURM_JOB_ID": str(MASTER.number)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as on_exit:
        deadline = time.monotonic() + WAIT_S
        while not (tmp_path / "asked").exists():
            assert on_exit.poll() is None and time.monotonic() < deadline, "Slurm was not asked"
            time.sleep(0.01)
        for name in SIGNALS:
            on_exit.send_signal(name)
        (tmp_path / "answer").touch()
        said, _ = on_exit.communicate(timeout=WAIT_S)
    assert on_exit.returncode == 0 and "the job is queued again" in said
    assert sent.turns() == [(MASTER.number, 1)]


class Until(Slurm):
    """Says until when jobs run, and nothing else."""

    def __init__(self, ends: Mapping[JobId, float]) -> None:
        super().__init__({})
        self.ends = ends

    def end_times(self, ids: Iterable[str | JobId]) -> dict[JobId, float]:
        wanted = {str(each) for each in ids}
        return {job: end for job, end in self.ends.items() if str(job.job) in wanted}


@pytest.mark.parametrize("newest_first", [False, True], ids=["oldest first", "newest first"])
def test_a_node_goes_with_the_first_of_its_jobs_that_ends(sent: Sent, newest_first: bool) -> None:
    sent.run.record_successor(NONCE, "workers", "200")
    ends = [(JobId(100), 9000.0), (JobId(101, 0), 8000.0), (JobId(101, 1), 7000.0), (JobId(200, 1), 9500.0)]
    slurm = Until(dict(reversed(ends) if newest_first else ends))
    assert SlurmAllocation(sent.run.root, NONCE, slurm).ends() == {EVERYTHING: 9000.0, 0: 8000.0, 1: 7000.0}


@pytest.mark.parametrize("newest_first", [False, True], ids=["oldest first", "newest first"])
def test_a_run_goes_with_the_first_of_its_masters_jobs_that_ends(sent: Sent, newest_first: bool) -> None:
    sent.run.record_successor(NONCE, "master", "200")
    ends = [(JobId(100), 9000.0), (JobId(200), 9500.0), (JobId(101, 0), 1000.0)]
    slurm = Until(dict(reversed(ends) if newest_first else ends))
    assert SlurmAllocation(sent.run.root, NONCE, slurm).ends() == {EVERYTHING: 9000.0, 0: 1000.0}


def test_a_successor_that_was_refused_is_sent_when_it_is_asked_for_again(sent: Sent) -> None:
    sent.fake.plan("sbatch", "refuse", words="sbatch: error: Batch job submission failed: Invalid qos specification")
    with pytest.raises(SlurmError, match="Invalid qos"):
        send_successor(sent.run, sent.fake.commands(), NONCE, "workers", "102.0", 1)
    assert not successor_is_under_way(sent.run, NONCE, "102.0") and successors(sent) == []
    job = send_successor(sent.run, sent.fake.commands(), NONCE, "workers", "102.0", 1)
    assert job is not None and successors(sent) == [(int(job), 1)]


def test_of_two_jobs_that_only_the_accounting_knows_the_newer_counts(sent: Sent) -> None:
    allocation = SlurmAllocation(sent.run.root, NONCE, sent.fake.commands())
    sent.fake.end(101, "NODE_FAIL", element=1)
    allocation.replace_missing({1: None})
    [(job, _)] = successors(sent)
    sent.fake.end(job, "CANCELLED")
    sent.fake.advance(301)
    absence = allocation.replace_missing({1: None})[1]
    assert (absence.standing, absence.what) == ("gone", f"job {job}_1 was cancelled")
    assert len(successors(sent)) == 1

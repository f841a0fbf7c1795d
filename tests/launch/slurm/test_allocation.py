"""What becomes of missing nodes, for what Slurm says of their jobs and how they ended before. On a fake Slurm."""

import time
from pathlib import Path

import pytest
from launch.slurm.test_submission import intent_of, made_run
from support.fake_slurm.cluster import FakeSlurm

from hpcrl.durable.rundir import RunDirectory
from hpcrl.launch.slurm.allocation import ANNOUNCED_S, SlurmAllocation
from hpcrl.launch.slurm.commands import SlurmUnavailableError
from hpcrl.launch.slurm.exits import record_exit
from hpcrl.launch.slurm.requeue import Cause, Ended
from hpcrl.launch.slurm.submission import script_path, send_all

NODE = 1
OWN = 102
"""The own id of element 1 of array 101."""


class Sent:
    """A submission whose element 1 is missing."""

    def __init__(self, folder: Path) -> None:
        self.fake = FakeSlurm(folder / "slurm")
        self.run: RunDirectory = made_run(folder)
        send_all(self.run, self.fake.commands(), intent_of(self.run), self.fake.advance)
        self.allocation = SlurmAllocation(self.run.root, "n1", self.fake.commands())

    def look(self, last: tuple[int, int] | None = (OWN, 0)) -> tuple[str, str]:
        (absence,) = self.allocation.replace_missing({NODE: last}).values()
        return absence.standing, absence.what

    def ends(self, word: str, job: int = 101) -> None:
        self.fake.end(job, word, element=NODE)

    def sent(self) -> list[int]:
        """Jobs of element 1 that were sent after the first."""
        return [job["job"] for job in self.fake.state["jobs"] if job["element"] == NODE and job["job"] != 101]


@pytest.fixture
def sent(tmp_path: Path) -> Sent:
    made = Sent(tmp_path)
    made.fake.run(101)
    return made


def test_who_is_queued_or_starts_is_left_alone(tmp_path: Path) -> None:
    sent = Sent(tmp_path)
    assert sent.look(None)[0] == "queued"
    sent.fake.run(101)
    assert sent.look(None) == ("silent", "job 101_1 is running")
    assert sent.sent() == []


@pytest.mark.parametrize(
    "reason", ["JobHeldUser", "DependencyNeverSatisfied", "BadConstraints", "launch_failed_requeued_held"]
)
def test_who_waits_for_a_person_is_held(tmp_path: Path, reason: str) -> None:
    sent = Sent(tmp_path)
    with sent.fake.change() as state:
        for job in state["jobs"]:
            job["reason"] = reason
    assert sent.look() == ("held", f"job 101_1 is pending ({reason})")


@pytest.mark.parametrize("last", [(OWN, 0), None], ids=["was there", "never came"])
@pytest.mark.parametrize("word", ["NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "TIMEOUT", "FAILED"])
def test_a_lost_element_has_one_successor(sent: Sent, word: str, last: tuple[int, int] | None) -> None:
    sent.ends(word)
    standing, what = sent.look(last)
    (job,) = sent.sent()
    assert (standing, what) == ("queued", f"job {job} was sent in the place of 101_1")
    assert sent.look(last) == ("queued", f"job {job}_1 is pending (Priority)")
    assert sent.sent() == [job]


def test_who_was_cancelled_stays_away(sent: Sent) -> None:
    sent.ends("CANCELLED")
    assert sent.look() == ("gone", "job 101_1 was cancelled")
    assert sent.sent() == []


def test_a_job_that_somebody_sent_by_hand_is_waited_for(sent: Sent) -> None:
    sent.ends("CANCELLED")
    script = script_path(sent.run, "n1", "workers")
    job = sent.fake.commands().sbatch(script, ["--array=1"])
    assert sent.look() == ("queued", f"job {job}_1 is pending (Priority)")
    sent.fake.end(int(job), "CANCELLED")
    assert sent.look() == ("gone", "job 101_1 was cancelled")


@pytest.mark.parametrize("state", ["COMPLETING", "SUSPENDED", "NEW_STATE"])
def test_a_job_that_neither_waits_nor_has_ended_does_not_come_by_itself(sent: Sent, state: str) -> None:
    with sent.fake.change() as values:
        for job in values["jobs"]:
            job["state"] = state
    assert sent.look()[0] == "silent"


@pytest.mark.parametrize("last", [(OWN, 0), None])
def test_an_incarnation_that_nobody_heard_is_judged_as_itself(sent: Sent, last: tuple[int, int] | None) -> None:
    """Its script has said that it is not to come back; that of the incarnation before said that it was killed."""
    sent.fake.commands().requeue("101_1")
    sent.fake.run(101, element=NODE)
    record_exit(sent.run, "n1", "workers-1", OWN, 0, Ended(Cause.KILLED, 137, time.time()))
    record_exit(sent.run, "n1", "workers-1", OWN, 1, Ended(Cause.USER_ERROR, 66, time.time()))
    sent.ends("FAILED")
    assert sent.look(last)[0] == "gone"
    assert sent.sent() == []


def test_the_budget_counts_for_successors_too(sent: Sent) -> None:
    for times in range(6):
        job = sent.sent()[-1] if times else 101
        sent.ends("FAILED", job)
        standing, what = sent.look(None)
    assert standing == "gone"
    assert "The process was killed: for the 6th time without progress, 5 are allowed." in what
    assert len(sent.sent()) == 5


def test_each_time_in_vain_is_waited_for_longer(sent: Sent) -> None:
    for times in range(3):
        sent.ends("NODE_FAIL", sent.sent()[-1] if times else 101)
        sent.look(None)
    begins = [word for call in sent.fake.state["calls"] for word in call if word.startswith("--begin")]
    assert begins == ["--begin=now+15", "--begin=now+30"]


@pytest.mark.parametrize("cause", [Cause.USER_ERROR, Cause.STOPPED, Cause.INTERNAL_ERROR])
def test_what_the_jobs_own_script_said_counts(sent: Sent, cause: Cause) -> None:
    record_exit(sent.run, "n1", "workers-1", OWN, 0, Ended(cause, 66, time.time()))
    sent.ends("FAILED")
    standing, what = sent.look()
    assert standing == "gone" and what.startswith("job 101_1 is not started again: ")
    assert sent.sent() == []


@pytest.mark.parametrize(("cause", "code"), [(Cause.DONE, 0), (Cause.LEFT_TO_SLURM, 75)])
def test_whether_a_job_is_done_or_cancelled_is_not_for_its_script_to_say(sent: Sent, cause: Cause, code: int) -> None:
    record_exit(sent.run, "n1", "workers-1", OWN, 0, Ended(cause, code, time.time()))
    sent.ends("NODE_FAIL")
    assert sent.look()[0] == "queued"
    assert len(sent.sent()) == 1


def test_who_is_forgotten_by_the_controller_is_asked_of_the_accounting(sent: Sent) -> None:
    sent.ends("CANCELLED")
    sent.fake.advance(301)
    assert sent.look() == ("gone", "job 101_1 was cancelled")
    sent.fake.set(accounting=False)
    assert sent.look(None) == ("silent", "Slurm knows no job of it")
    assert sent.look()[0] == "queued", "its agent was heard, and nobody has seen it cancelled"
    assert len(sent.sent()) == 1


def test_a_job_that_only_the_accounting_has_running_is_left_alone(sent: Sent) -> None:
    sent.fake.advance(301)
    with sent.fake.change() as state:
        for job in state["jobs"]:
            # Over for the controller, and nobody has told the accounting.
            job.update(ended=state["now"] - 301)
    assert sent.look() == ("silent", "job 101_1 is running by the accounting; squeue does not know it")
    assert sent.sent() == []


def test_a_successor_that_a_killed_script_announced_is_sent_later(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    sent.ends("NODE_FAIL")
    folder = sent.run.submitit_folder("n1")
    sent.run.files.publish(folder / f"successor-of-{OWN}.0.announced", b"", "successor")
    now = [time.monotonic()]
    monkeypatch.setattr("hpcrl.launch.slurm.allocation.time.monotonic", lambda: now[0])
    monkeypatch.setattr("hpcrl.launch.slurm.submission.time.sleep", sent.fake.advance)
    assert sent.look() == ("queued", "a successor of job 101_1 is on its way") and sent.sent() == []
    now[0] += ANNOUNCED_S + 1
    assert sent.look()[0] == "queued"
    assert len(sent.sent()) == 1


def test_a_silent_controller_changes_nothing(sent: Sent) -> None:
    sent.ends("NODE_FAIL")
    sent.fake.away(600)
    with pytest.raises(SlurmUnavailableError):
        sent.look()
    assert sent.sent() == []


def test_nodes_that_are_no_jobs_of_their_own_are_not_looked_after(sent: Sent) -> None:
    assert sent.allocation.replace_missing({}) == {}
    assert SlurmAllocation(sent.run.root, "another", sent.fake.commands()).replace_missing({0: None}) == {}


def test_what_still_waits_is_cancelled_by_its_own_id_and_what_runs_is_left_alone(tmp_path: Path) -> None:
    sent = Sent(tmp_path)
    sent.fake.run(101, element=0)
    sent.allocation.release([0, NODE])
    words = {job["element"]: job["state"] for job in sent.fake.state["jobs"] if job["job"] == 101}
    assert (words[0], words[NODE]) == ("RUNNING", "CANCELLED")

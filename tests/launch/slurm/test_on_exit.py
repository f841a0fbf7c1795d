"""What becomes of a job whose process has ended: for who it was, how it ended, and what Slurm says. On a fake Slurm."""

import dataclasses
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.chaos import create_run, toy_experiment
from support.fake_slurm.cluster import FakeSlurm

from hpcrl.durable.accounting import JobAccount, read_accounts
from hpcrl.durable.journal import Closed, open_journal
from hpcrl.durable.records import Verdict
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import HpcrlError
from hpcrl.inspect.trail import ended_jobs
from hpcrl.launch.slurm.commands import Slurm, SlurmUnavailableError
from hpcrl.launch.slurm.on_exit import ACCOUNT_AGAIN_S, Job, job_of, keep_accounting, settle, write_end_before
from hpcrl.launch.slurm.render import Script, Target, render
from hpcrl.launch.slurm.requeue import RequeueRules
from hpcrl.launch.slurm.submission import Intent, send_all, write_intent

NONCE = "n1"
MASTER = Job("100", 100, "master", None, 0)
AGENT = Job("101_1", 102, "agent", "1", 0)


class Sent:
    """A submission of a master and two elements that all run."""

    def __init__(self, folder: Path, rules: RequeueRules = RequeueRules()) -> None:  # noqa: B008
        self.fake = FakeSlurm(folder / "slurm")
        experiment = toy_experiment()
        cluster = dataclasses.replace(experiment.cluster, type="slurm", topology="array", nodes=2)
        self.cluster = cluster
        self.run: RunDirectory = create_run(folder / "run", dataclasses.replace(experiment, cluster=cluster))
        self.run.files.make_directory(self.run.submitit_folder(NONCE))
        scripts = render(cluster, "array", Target(self.run.root, "toy", NONCE))
        send_all(self.run, self.fake.commands(), self.intent(scripts, rules))
        self.fake.run(100)
        self.fake.run(101)

    def intent(self, scripts: Sequence[Script], rules: RequeueRules) -> Intent:
        return write_intent(self.run, NONCE, "array", scripts, {name: {"": rules} for name in ("master", "workers")})

    def settle(self, job: Job, code: int, *told: str) -> str:
        return settle(self.run, NONCE, job, code, told, self.fake.commands())

    def verdict(self, state: str, code: int) -> None:
        number = self.run.claim_attempt(NONCE)
        self.run.publish_verdict(number, Verdict(number, state, code, "why", None, None, None, time.time()))

    def job(self, job: Job) -> dict[str, Any]:
        return next(each for each in self.fake.state["jobs"] if each["number"] == job.number)

    def turns(self) -> list[tuple[int, int]]:
        """(own id, restarts) of the jobs that are pending."""
        return [(job["number"], len(job["past"])) for job in self.fake.state["jobs"] if job["state"] == "PENDING"]


@pytest.fixture
def sent(tmp_path: Path) -> Sent:
    return Sent(tmp_path)


@pytest.mark.parametrize("code", [75, 76, 137, 1])
@pytest.mark.parametrize("job", [MASTER, AGENT], ids=["master", "agent"])
def test_who_was_interrupted_has_another_turn(sent: Sent, job: Job, code: int) -> None:
    assert "queued again" in sent.settle(job, code)
    assert sent.turns() == [(job.number, 1)]


@pytest.mark.parametrize(("state", "code"), [("done", 0), ("stopped", 93), ("failed", 70), ("failed", 64)])
def test_who_is_over_is_left_and_elements_that_wait_with_it(sent: Sent, state: str, code: int) -> None:
    sent.verdict(state, code)
    with sent.fake.change() as values:
        values["jobs"][2]["state"] = "PENDING"
    sent.settle(MASTER, code)
    assert sent.turns() == []
    assert sent.job(AGENT)["state"] == "CANCELLED"


def test_a_master_of_an_older_time_touches_nobody(sent: Sent) -> None:
    """Split brain: it ends because another has taken over, whose elements may be waiting."""
    sent.verdict("superseded", 93)
    with sent.fake.change() as values:
        values["jobs"][2]["state"] = "PENDING"
    sent.settle(MASTER, 93)
    assert sent.job(AGENT)["state"] == "PENDING"


@pytest.mark.parametrize("job", [MASTER, AGENT], ids=["master", "agent"])
def test_after_sigterm_slurm_decides(sent: Sent, job: Job) -> None:
    assert "unless it was cancelled" in sent.settle(job, 75, "TERM")
    assert sent.turns() == []


def test_a_preempted_job_is_queued_by_slurm_alone(sent: Sent) -> None:
    with sent.fake.change() as values:
        values["jobs"][2]["preempted"] = True
    assert "Slurm queues it again" in sent.settle(AGENT, 75, "TERM")
    assert sent.turns() == []


def test_where_preemption_cancels_a_successor_is_sent_once(tmp_path: Path) -> None:
    sent = Sent(tmp_path, RequeueRules(requeue_allowed=True, preemption_cancels=True))
    with sent.fake.change() as values:
        values["jobs"][2]["preempted"] = True
    for _ in range(2):
        assert "a successor is submitted" in sent.settle(AGENT, 75, "TERM")
    (job,) = [job for job in sent.fake.state["jobs"] if job["job"] > 102]
    assert job["element"] == 1


@pytest.mark.parametrize(
    ("code", "word", "state"),
    [(0, "done", "CANCELLED"), (93, "stopped", "CANCELLED"), (70, "failed", "CANCELLED"), (75, "preempted", "PENDING")],
)
def test_who_outlives_its_script_tells_slurm_what_becomes_of_the_job(
    sent: Sent, code: int, word: str, state: str
) -> None:
    sent.verdict(word, code)
    for job in (MASTER, AGENT):
        sent.settle(job, code)
        told = "PENDING" if state == "PENDING" else "RUNNING"
        assert sent.job(job)["state"] == told, "otherwise its end is what slurmstepd tells"
        sent.settle(job, code, "ALONE")
        assert sent.job(job)["state"] == state


def test_who_outlives_its_script_and_may_not_come_back_makes_room_for_its_successor(tmp_path: Path) -> None:
    sent = Sent(tmp_path, RequeueRules(requeue_allowed=False))
    assert "a successor is submitted" in sent.settle(AGENT, 75, "ALONE")
    assert sent.job(AGENT)["state"] == "CANCELLED"
    assert [job["element"] for job in sent.fake.state["jobs"] if job["state"] == "PENDING"] == [1]


def test_a_time_limit_that_came_without_a_warning_is_another_turn(sent: Sent) -> None:
    sent.fake.advance(3600)
    assert "time limit" in sent.settle(AGENT, 75, "TERM")
    assert sent.turns() == [(AGENT.number, 1)]


@pytest.mark.parametrize("words", ["Requested operation is presently disabled", "Access/permission denied"])
def test_a_refused_requeue_is_a_successor(sent: Sent, words: str) -> None:
    with sent.fake.change() as values:
        # The job is looked at before.
        values["plans"] += [["scontrol", "pass"], ["scontrol", "refuse"]]
        values["words"] = words
    sent.settle(AGENT, 137)
    assert [job["element"] for job in sent.fake.state["jobs"] if job["state"] == "PENDING"] == [1]


def test_a_job_that_was_cancelled_meanwhile_stays_cancelled(sent: Sent) -> None:
    for word in ("COMPLETING", "CANCELLED"):
        sent.fake.end(101, word, element=1)
        assert sent.settle(AGENT, 75) == "The job was cancelled."
    assert sent.turns() == []


def test_a_script_of_an_older_turn_does_not_end_the_present_one(sent: Sent) -> None:
    sent.fake.preempt(101, element=1)
    sent.fake.run(101, element=1)
    assert sent.settle(AGENT, 75) == "The job has been started again already."
    assert sent.job(AGENT)["state"] == "RUNNING"


def test_an_element_without_a_master_is_let_go(sent: Sent) -> None:
    sent.fake.end(100, "FAILED", 70)
    assert "There is no master" in sent.settle(AGENT, 75)
    assert sent.turns() == []


def test_a_step_whose_node_failed_is_not_the_end_of_the_run(sent: Sent) -> None:
    """srun then says 0."""
    assert "done" not in sent.settle(MASTER, 0, "TERM")
    assert "was killed: the job is queued again" in sent.settle(AGENT, 0)


def test_a_run_that_another_submission_has_finished_is_done(sent: Sent) -> None:
    number = sent.run.claim_attempt("later")
    sent.run.publish_verdict(number, Verdict(number, "done", 0, "why", None, None, None, time.time()))
    sent.verdict("superseded", 93)
    assert sent.settle(MASTER, 0) == sent.settle(AGENT, 0) == "The run is done."


def test_who_waited_for_those_that_only_queue_comes_back_at_once_however_often(sent: Sent) -> None:
    for restarts in range(8):
        sent.verdict("queued", 75)
        for job in (MASTER, AGENT):
            said = sent.settle(dataclasses.replace(job, restarts=restarts), 75)
            assert said == "Other nodes wait for their turn: the job is queued again."
        sent.fake.run(100)
        sent.fake.run(101)


def test_a_master_whose_place_another_one_has_taken_leaves_the_elements_alone(sent: Sent) -> None:
    """Split brain of the master: the newest attempt is the other one's, and has no verdict."""
    sent.run.claim_attempt(NONCE)
    with sent.fake.change() as values:
        values["jobs"][2]["state"] = "PENDING"
    sent.settle(MASTER, 93)
    assert sent.job(AGENT)["state"] == "PENDING"


@pytest.mark.parametrize("rules", [RequeueRules(preemption_cancels=True), RequeueRules(requeue_allowed=False)])
def test_where_nobody_else_sees_to_it_a_silent_controller_is_asked_until_it_answers(
    tmp_path: Path, rules: RequeueRules
) -> None:
    sent = Sent(tmp_path, rules)
    with sent.fake.change() as values:
        values["jobs"][0]["preempted"] = True
    sent.fake.away(30)
    with pytest.raises(SlurmUnavailableError):
        sent.settle(MASTER, 75, "TERM")
    sent.fake.advance(60)
    assert "a successor is submitted" in sent.settle(MASTER, 75, "TERM")


def test_where_slurm_sees_to_it_a_silent_controller_is_no_trouble(sent: Sent) -> None:
    sent.fake.away(30)
    assert sent.settle(MASTER, 75, "TERM") == "Slurm ended the job, and queues it again unless it was cancelled."
    assert sent.turns() == []


@pytest.mark.parametrize("allowed", [True, False])
def test_a_node_that_failed_under_the_script_is_a_successor_where_slurm_does_not_queue_again(
    tmp_path: Path, allowed: bool
) -> None:
    sent = Sent(tmp_path, RequeueRules(requeue_allowed=allowed))
    sent.fake.end(100, "NODE_FAIL")
    said = sent.settle(MASTER, 75, "TERM")
    if allowed:
        assert said == "Slurm queues it again by itself (node_failure)." and sent.turns() == []
    else:
        assert said == "A node failed; its flags forbid requeueing: a successor is submitted."
        assert sent.fake.state["jobs"][-1]["state"] == "PENDING"


def test_what_happens_to_a_preempted_job_is_a_matter_of_the_partition_where_it_is(sent: Sent) -> None:
    rules = {"": RequeueRules(), "low": RequeueRules(), "cancels": RequeueRules(preemption_cancels=True)}
    sent.run.files.make_directory(sent.run.submitit_folder("n2"))
    scripts = render(sent.cluster, "array", Target(sent.run.root, "toy", "n2"))
    write_intent(sent.run, "n2", "array", scripts, dict.fromkeys(("master", "workers"), rules))
    with sent.fake.change() as values:
        values["jobs"][0]["preempted"] = True
    here = {where: dataclasses.replace(MASTER, partition=where, restarts=0) for where in ("low", "cancels")}
    slurm = sent.fake.commands()
    assert "Slurm queues it again" in settle(sent.run, "n2", here["low"], 75, ["TERM"], slurm)
    (sent.run.submitit_folder("n2") / "exits" / "master.100.0.json").unlink()
    assert "a successor is submitted" in settle(sent.run, "n2", here["cancels"], 75, ["TERM"], slurm)


def test_a_time_limit_that_is_too_short_for_a_call_is_not_tried_for_ever(sent: Sent) -> None:
    for restarts in range(11):
        said = sent.settle(dataclasses.replace(MASTER, restarts=restarts), 75, "USR2")
        sent.fake.run(100)
    assert said == "The job reached its time limit (exit code 75): for the 11th time without progress, 10 are allowed."


def test_a_damaged_record_of_an_end_counts_for_nothing(sent: Sent) -> None:
    folder = sent.run.files.directory(sent.run.submitit_folder(NONCE) / "exits")
    for name, text in (("master.100.0", b"{"), ("master.99.0", b'{"cause": "later", "exit_code": 1, "when": 0}')):
        sent.run.files.publish(folder / f"{name}.json", text, "exit")
    assert "queued again" in sent.settle(MASTER, 137)


def test_who_was_killed_too_often_is_left(sent: Sent) -> None:
    for restarts in range(6):
        job = dataclasses.replace(MASTER, restarts=restarts)
        said = sent.settle(job, 137)
        if restarts < 5:
            assert "queued again" in said
            sent.fake.run(100)
    assert "for the 6th time without progress, 5 are allowed" in said
    assert sent.turns() == []


def test_who_went_when_told_comes_back_at_once_however_often(sent: Sent) -> None:
    for restarts in range(8):
        assert "queued again." in sent.settle(dataclasses.replace(AGENT, restarts=restarts), 76)
        sent.fake.run(101)
    sent.verdict("preempted", 75)
    for restarts in range(8):
        assert "queued again." in sent.settle(dataclasses.replace(MASTER, restarts=restarts), 75)
        sent.fake.run(100)


def test_who_waited_in_vain_comes_back_later_each_time_until_the_run_gets_on(sent: Sent) -> None:
    delays = []
    for restarts in range(4):
        sent.verdict("incomplete", 75)
        delays.append(sent.settle(dataclasses.replace(MASTER, restarts=restarts), 75).rpartition("queued again")[2])
        sent.fake.run(100)
    assert delays == [".", ", after 15 s.", ", after 30 s.", ", after 60 s."]
    journal = open_journal(sent.run.files, sent.run.journal(sent.run.claim_attempt(NONCE)))
    journal.append([Closed(1, {})])
    journal.close()
    sent.verdict("incomplete", 75)
    assert sent.settle(dataclasses.replace(MASTER, restarts=4), 75).endswith("queued again.")


def test_a_job_that_ran_out_of_memory_has_one_more_turn(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcrl.launch.slurm.on_exit.oom_kills", lambda job_only: 1)
    assert "out of memory: the job is queued again" in sent.settle(MASTER, 137)
    sent.fake.run(100)
    assert "1 are allowed" in sent.settle(dataclasses.replace(MASTER, restarts=1), 137)


def test_a_silent_controller_is_for_the_caller_to_ask_again(sent: Sent) -> None:
    sent.fake.away(30)
    with pytest.raises(SlurmUnavailableError):
        sent.settle(MASTER, 75)
    sent.fake.advance(60)
    assert "queued again" in sent.settle(MASTER, 75)
    assert sent.turns() == [(100, 1)]


def test_a_job_knows_itself_by_what_slurm_says() -> None:
    environ = {"SLURM_JOB_ID": "102", "SLURM_ARRAY_JOB_ID": "101", "SLURM_ARRAY_TASK_ID": "1"}
    assert job_of(environ, "agent") == AGENT
    assert job_of(environ | {"SLURM_JOB_PARTITION": "low"}, "agent").partition == "low"
    assert job_of({"SLURM_JOB_ID": "100", "SLURM_RESTART_COUNT": "2"}, "master") == dataclasses.replace(
        MASTER, restarts=2
    )


def test_what_accounting_says_of_a_job_is_kept_once_for_each_of_its_starts(sent: Sent) -> None:
    keep_accounting(sent.run, NONCE, AGENT, sent.fake.commands())
    with sent.fake.change() as values:
        values["jobs"][2]["state"] = "NODE_FAIL"
    for _ in range(2):
        keep_accounting(sent.run, NONCE, dataclasses.replace(AGENT, restarts=1), sent.fake.commands())
    found = read_accounts(sent.run, NONCE)
    assert {name: [line.state for line in lines] for name, lines in found.items()} == {
        "workers-1.102.0": ["RUNNING"],
        "workers-1.102.1": ["NODE_FAIL"],
    }
    (line,) = found["workers-1.102.0"]
    assert isinstance(line, JobAccount) and (line.job, line.nodes, line.elapsed) == ("101_1", "gpu1", "00:01:00")
    assert (line.reason, line.max_rss) == ("", "")


def test_of_a_job_that_slurm_ends_it_is_asked_until_it_says_how(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm, waited = sent.fake.commands(), []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        with sent.fake.change() as values:
            values["jobs"][2]["state"] = "NODE_FAIL"

    monkeypatch.setattr("hpcrl.launch.slurm.on_exit.time.sleep", wait)
    keep_accounting(sent.run, NONCE, AGENT, slurm, patience_s=60.0)
    ((line,),) = read_accounts(sent.run, NONCE).values()
    assert line.state == "NODE_FAIL" and waited.count(ACCOUNT_AGAIN_S) == 1


def test_an_end_that_nobody_could_write_down_is_written_by_the_next_start(sent: Sent) -> None:
    slurm = sent.fake.commands()
    sent.settle(MASTER, 75, "TERM")
    for word, restarts in (("NODE_FAIL", 1), ("NODE_FAIL", 2), ("PREEMPTED", 3)):
        sent.fake.advance(60)
        sent.fake.preempt(100, word=word)
        sent.fake.advance(60)
        sent.fake.run(100)
        for _ in range(2):
            write_end_before(sent.run, NONCE, dataclasses.replace(MASTER, restarts=restarts), slurm)
    write_end_before(sent.run, NONCE, MASTER, slurm)
    write_end_before(sent.run, NONCE, dataclasses.replace(MASTER, restarts=9), slurm)
    ended = [(job.cause, job.exit_code, job.state) for job in ended_jobs(sent.run, NONCE)]
    # The first hook was cut short after it had written down what it could see.
    first = ("left_to_slurm", 75, "NODE_FAIL")
    assert ended == [first, ("node_failure", None, "NODE_FAIL"), ("preempted", None, "PREEMPTED")]


@pytest.mark.parametrize("away", ["accounting", "commands"])
def test_without_accounting_a_job_ends_all_the_same_and_nothing_is_kept(sent: Sent, away: str) -> None:
    if away == "accounting":
        sent.fake.set(accounting=False)
    slurm = sent.fake.commands() if away == "accounting" else Slurm({"PATH": str(sent.fake.folder)})
    keep_accounting(sent.run, NONCE, MASTER, slurm)
    with suppress(HpcrlError):
        write_end_before(sent.run, NONCE, dataclasses.replace(MASTER, restarts=1), slurm)
    assert ended_jobs(sent.run, NONCE) == [] and read_accounts(sent.run, NONCE) == {}

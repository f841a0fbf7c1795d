"""Why attempts ended, from files that their processes might have left."""

import io
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from support.made_run import MadeRun
from support.slurm_made import made_on_slurm, reclaim

from hpcrl.durable.accounting import JobAccount, keep_account
from hpcrl.durable.records import Verdict
from hpcrl.events import (
    AgentConnected,
    AllocationEnds,
    AttemptEnded,
    CallFailed,
    CallStalled,
    CallWentOn,
    WorkerEnded,
)
from hpcrl.inspect.cause_text import cause_lines
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.terminal import show
from hpcrl.inspect.trail import line_at, lines_at_end
from hpcrl.inspect.verdicts import VERDICTS
from hpcrl.inspect.views.why import Cause, cause_of, causes_of, newest_cause, why
from hpcrl.launch.slurm.requeue import Cause as JobCause
from hpcrl.launch.slurm.requeue import Ended
from hpcrl.member_events import MasterLost

KEY_ERROR = "UserCodeError: reward.function score.py:score failed\nKeyError: 'label'\n  File \"score.py\", line 3"


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    it = MadeRun(tmp_path / "run")
    it.begin()
    return it


def ended(made: MadeRun, state: str, reason: str, **fields: Any) -> Cause:
    made.write(AttemptEnded(state, reason, **fields))
    cause = cause_of(made.run, made.attempt)
    assert cause is not None
    return cause


def killed(made: MadeRun, rank: int = 1, process: str = "", **fields: Any) -> None:
    told = {"signal": "SIGKILL", "phase": "running actor_gen of step 3"} | fields
    made.write(
        WorkerEnded(rank, 0, f"killed by {told['signal']}", "attempts/000/logs/worker-1.err", **told), 0.01, process
    )


def test_of_a_worker_that_raised_its_own_line_is_the_evidence_and_peers_and_teardown_are_folded(made: MadeRun) -> None:
    made.write(CallFailed(1, "step 3 rew_inf, part 0", KEY_ERROR, "Traceback\n deep\n", exit_code=66), 0.01, "worker-1")
    made.write(CallFailed(0, "step 3 actor_train, part 0", "reset", of_peer=True), 0.01, "worker-0")
    made.write(CallFailed(1, "step 3 rew_inf, part 0", KEY_ERROR, exit_code=66))
    for rank in (0, 1):
        killed(made, rank, "agent-0", ordered=True)
    cause = ended(made, "failed", "worker-1, step 3 …", exit_code=66, who="worker-1")
    assert (cause.verdict, cause.confidence, cause.who) == ("user's code", "certain", "worker-1")
    assert (cause.where, cause.said) == ("step 3 rew_inf, part 0", KEY_ERROR)
    assert [(it.file, it.line) for it in cause.evidence] == [
        ("attempts/000/logs/worker-1.jsonl", 1),
        ("attempts/000/events.jsonl", 5),
    ]
    assert (cause.folded.failures, cause.folded.ends) == (1, 1)
    text = "\n".join(cause_lines(cause))
    assert text.count("KeyError") == 1 and "deep" not in text and f"next     hpcrl resume {made.run.root}" in text
    assert "deep" in "\n".join(cause_lines(cause, traceback=True))


@pytest.mark.parametrize(
    ("fields", "verdict", "confidence"),
    [
        ({}, "node failure", "likely"),
        ({"out_of_memory": True}, "host memory", "certain"),
        ({"signal": "SIGSEGV"}, "internal", "likely"),
        ({"signal": "", "exit_code": 1}, "internal", "likely"),
        ({"signal": "", "exit_code": 75}, "disk", "likely"),
    ],
)
def test_of_a_worker_that_is_gone_its_end_says_why(
    made: MadeRun, fields: dict[str, Any], verdict: str, confidence: str
) -> None:
    made.write(CallFailed(0, "step 3 actor_train, part 0", "reset", of_peer=True))
    killed(made, **fields)
    cause = ended(made, "lost", "worker-1: killed", exit_code=75, who="worker-1")
    assert (cause.verdict, cause.confidence, cause.who) == (verdict, confidence, "worker-1")
    assert cause.where == "running actor_gen of step 3" and cause.folded.failures == 1


@pytest.mark.parametrize(
    ("file", "verdict"), [("/home/me/score.py", "user's code"), ("/x/hpcrl/errors.py", "internal")]
)
def test_the_stacks_of_a_crash_say_whose_code_it_was(made: MadeRun, file: str, verdict: str) -> None:
    path = made.run.worker_log(0, "worker-1").with_suffix(".err")
    path.write_text(f'noise\nFatal Python error: Segmentation fault\n\nThread 1:\n  File "{file}", line 3 in f\n')
    killed(made, signal="SIGSEGV")
    cause = ended(made, "lost", "worker-1: killed by SIGSEGV", who="worker-1")
    assert (cause.verdict, cause.confidence) == (verdict, "certain")
    assert [(it.file, it.line) for it in cause.evidence][1] == ("attempts/000/logs/worker-1.err", 2)
    assert (file in cause.frames) == (verdict == "user's code")


def test_a_worker_of_whose_end_nobody_tells_hangs_in_its_last_call(made: MadeRun) -> None:
    at = {"who": "worker-1", "step": 4, "call": "actor_train"}
    cause = ended(made, "lost", "worker-1: gave no sign of life within 3 s", **at)
    assert cause.verdict == "hang in actor_train of step 4 on worker-1"
    assert [it.file for it in cause.evidence] == ["attempts/000/events.jsonl"]


def test_of_a_worker_that_said_nothing_of_it_its_master_knows_what_it_had_to_execute(made: MadeRun) -> None:
    killed(made, phase="idle", step=3, call="rew_inf")
    cause = ended(made, "lost", "worker-1: killed by SIGKILL", who="worker-1")
    assert cause.where == "rew_inf of step 3"


@pytest.mark.parametrize(
    ("ending", "verdict"),
    [
        (AttemptEnded("failed", "x", 64), "configuration"),
        (AttemptEnded("failed", "x", 65, "master"), "data"),
        (AttemptEnded("failed", "x", 70, "master"), "internal"),
        (AttemptEnded("failed", "x", 70, "master", nature="disk"), "disk"),
        (AttemptEnded("failed", "x", 66, "worker-0", nature="host memory"), "host memory"),
        (AttemptEnded("failed", "x", 93), "node failure"),
        (AttemptEnded("lost", "agent-1: silent for 3 s", 75, "agent-1"), "node failure"),
        (AttemptEnded("lost", "broke", 75, "worker-0", nature="communication"), "communication"),
        (AttemptEnded("lost", "agent-0: died, out of memory: the kernel has killed", 75, "agent-0"), "host memory"),
        (AttemptEnded("lost", "spills/x is damaged: crc", 75), "disk"),
        (AttemptEnded("lost", "node 1 is to go: SIGTERM", 75, asked=True), "preempted"),
        (AttemptEnded("lost", "node 1 is to go: the parent of its workers died", 75, asked=True), "node failure"),
        (AttemptEnded("preempted", "the master got SIGTERM", 75, asked=True), "preempted"),
        (AttemptEnded("preempted", "its allocation ends soon, and no call fits", 75, asked=True), "time limit"),
        (AttemptEnded("stopped", "asked to", 93, asked=True), "cancelled"),
        (AttemptEnded("superseded", "a newer attempt", 93), "cancelled"),
        (AttemptEnded("queued", "1 of 2 nodes came", 75), "waiting for Slurm"),
        (AttemptEnded("incomplete", "[1] started but could not connect to tcp://", 75), "communication"),
        (AttemptEnded("incomplete", "1 of 2 nodes came", 75), "node failure"),
        (AttemptEnded("incomplete", "no progress in starting within 3", 75), "hang in starting"),
    ],
)  # fmt: skip
def test_each_ending_has_its_verdict(made: MadeRun, ending: AttemptEnded, verdict: str) -> None:
    made.write(ending)
    cause = cause_of(made.run, 0)
    assert cause is not None and (cause.verdict, cause.said) == (verdict, ending.reason)
    assert cause.next.startswith(("hpcrl ", "df "))


def test_attempts_that_are_done_or_run_have_no_cause_and_older_ones_keep_theirs(made: MadeRun) -> None:
    killed(made)
    made.write(AttemptEnded("lost", "worker-1: killed by SIGKILL", 75, "worker-1"))
    made.begin()
    assert [(cause.attempt, cause.continued, cause.next) for cause in causes_of(made.run)] == [(0, True, "")]
    made.write(AttemptEnded("done", "step 60 was the last"))
    assert [cause.attempt for cause in causes_of(made.run)] == [0]
    out = io.StringIO()
    show(why(RunReader(made.run)), Console(file=out, width=200))
    assert "attempt 0, the run went on in attempt 1" in out.getvalue()


def test_a_master_that_died_without_a_word_is_told_of_by_those_that_it_left(made: MadeRun) -> None:
    assert cause_of(made.run, 0) is None, "it runs"
    reclaim(made, pid_started=1)
    made.write(MasterLost(3.0), process="agent-0")
    killed(made, 0, "agent-0")
    cause = cause_of(made.run, 0)
    assert cause is not None and (cause.verdict, cause.who) == ("node failure", "master")
    assert [(it.file, it.text) for it in cause.evidence] == [("attempts/000/logs/agent-0.jsonl", "master lost")]
    reclaim(made, boot_id="another")
    cause = cause_of(made.run, 0)
    assert cause is not None and cause.confidence == "certain" and "was started anew" in cause.said


def test_what_a_worker_wrote_before_its_master_died_began_it(made: MadeRun) -> None:
    made.write(CallFailed(1, "starting", "OSError: full", nature="disk", exit_code=70), process="worker-1")
    reclaim(made, pid_started=1)
    cause = cause_of(made.run, 0)
    assert cause is not None and (cause.verdict, cause.who, cause.said) == ("disk", "worker-1", "OSError: full")


@pytest.mark.parametrize(
    ("cause", "verdict"),
    [
        (JobCause.OUT_OF_MEMORY, "host memory"),
        (JobCause.NODE_FAILURE, "node failure"),
        (JobCause.TIME_LIMIT, "time limit"),
        (JobCause.PREEMPTED, "preempted"),
        (JobCause.CANCELLED, "cancelled"),
    ],
)
def test_what_slurms_jobs_left_explains_a_master_that_left_no_word(
    tmp_path: Path, cause: JobCause, verdict: str
) -> None:
    made = made_on_slurm(tmp_path / "run")
    made.begin()
    reclaim(made, pid_started=1, time=1.0)
    exits = made.run.submitit_folder("submission") / "exits"
    exits.mkdir(parents=True)
    (exits / "master.123.0.json").write_bytes(msgspec.json.encode(Ended(cause, 137, 5.0)))
    found = cause_of(made.run, 0)
    assert found is not None and (found.verdict, found.who) == (verdict, "master")
    assert found.evidence[-1].file == "submission/submission/exits/master.123.0.json"


def ended_job(made: MadeRun, name: str, end: Ended) -> None:
    exits = made.run.submitit_folder("submission") / "exits"
    exits.mkdir(parents=True, exist_ok=True)
    (exits / f"{name}.json").write_bytes(msgspec.json.encode(end))


def told_to_go(folder: Path) -> MadeRun:
    """A node's job has got SIGTERM, and another attempt goes on."""
    made = made_on_slurm(folder / "run")
    made.begin()
    reclaim(made, time=1.0)
    made.write(AttemptEnded("lost", "node 1 is to go: got SIGTERM", 75, asked=True))
    made.begin()
    reclaim(made, time=4.0)
    return made


def test_where_those_that_were_to_join_had_gone_it_is_said_that_nothing_changed(made: MadeRun) -> None:
    made.write(AttemptEnded("grown", "node 2 can join", 75, asked=True))
    made.begin()
    cause = cause_of(made.run, 0)
    assert cause is not None and cause.said == "node 2 can join", "nobody knows who will be there"
    made.run.plan(1).write_bytes(b"{}")
    cause = cause_of(made.run, 0)
    assert cause is not None and cause.said.endswith(
        "on as many nodes as before: those that were to join were gone by then."
    )


def made_at(made: MadeRun) -> float:
    """When an agent came."""
    lines = made.run.events(made.attempt).read_bytes().splitlines()
    return next(float(json.loads(line)["time"]) for line in lines if b'"event":"node"' in line)


def accounts(*states: str, step: str = "FAILED") -> list[JobAccount]:
    """What sacct says of a job in each of its starts, and of a step of the last."""
    lines = [
        JobAccount("123", state, "0:0", "", "", "00:01:00", "n1", f"2026-01-0{day}T10:00:00", "")
        for day, state in enumerate(states, 1)
    ]
    return [*lines, msgspec.structs.replace(lines[-1], job="123.0", state=step)]


def test_accounting_corrects_what_a_jobs_own_process_could_see(tmp_path: Path) -> None:
    made = made_on_slurm(tmp_path / "run")
    made.begin()
    reclaim(made, pid_started=1, time=1.0)
    exits = made.run.submitit_folder("submission") / "exits"
    exits.mkdir(parents=True)
    (exits / "master.123.0.json").write_bytes(msgspec.json.encode(Ended(JobCause.KILLED, 137, 5.0)))
    keep_account(made.run, "submission", "master.123.0", accounts("RUNNING", step="OUT_OF_MEMORY"))
    found = cause_of(made.run, 0)
    assert found is not None and found.verdict == "host memory"


def test_a_run_whose_jobs_are_to_come_waits_for_slurm(tmp_path: Path) -> None:
    made = made_on_slurm(tmp_path / "run")
    assert [cause.verdict for cause in causes_of(made.run)] == ["waiting for Slurm"]
    made.begin()
    assert causes_of(made.run) == []
    made.verdict("preempted", 75, "the master got SIGTERM")
    waits, was = causes_of(made.run)
    assert [waits.verdict, was.verdict] == ["waiting for Slurm", "preempted"]
    assert waits.next == f"hpcrl status {made.run.root}" and was.next == "", "it goes on by itself"


def test_a_start_that_came_to_no_attempt_is_told_too(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.run.record_submission("n", {"master": 1})
    verdict = Verdict(None, "failed", 65, "DataError: rows.jsonl, line 3: no JSON", None, None, None, 1.0)
    made.run.publish_early_verdict("n", verdict)
    (cause,) = why(RunReader(made.run)).causes
    assert (cause.attempt, cause.verdict, cause.said) == (None, "data", "DataError: rows.jsonl, line 3: no JSON")


def test_every_verdict_has_a_meaning_what_to_do_and_a_command(made: MadeRun) -> None:
    for kind, verdict in VERDICTS.items():
        assert verdict.means and verdict.do and verdict.next.split()[0] in ("hpcrl", "df"), kind
    cause = ended(made, "failed", "x", exit_code=66)
    assert json.loads(msgspec.json.encode(cause))["next"] == (
        f"hpcrl resume {made.run.root} --accept-changed reward.function"
    )


def test_only_ends_are_read_and_lines_are_numbered(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    lines = [b"%d %s\n" % (number, b"x" * (number % 50)) for number in range(5000)]
    path.write_bytes(b"".join(lines) + b"torn")
    found = list(lines_at_end(path, 1000))
    assert [line for _, line in found] == lines[-len(found) :] and sum(len(line) for _, line in found) < 1000
    assert [line_at(path, offset) for offset, _ in found] == list(range(5001 - len(found), 5001))
    path.write_bytes(b"y" * 200_000 + b"\n")
    assert [len(line) for _, line in lines_at_end(path, 1000)] == [200_001]
    assert list(lines_at_end(tmp_path / "missing", 10)) == [] and line_at(tmp_path / "missing", 3) == 0
    assert os.listdir(tmp_path) == ["log.jsonl"]


def test_a_call_that_takes_far_too_long_in_a_run_that_lives_is_a_hang_until_it_is_executed(made: MadeRun) -> None:
    made.write(CallStalled(5, "rew_inf", 0, (0, 1), 2100.0, 3.0, (1,), "worker-1 never entered all_to_all 413"))
    made.execute(5, "ref_inf", 0, [0])
    cause = cause_of(made.run, 0)
    assert cause is not None and (cause.verdict, cause.who) == ("hang in rew_inf of step 5", "worker-1")
    assert "2100 s: worker-1 never entered all_to_all 413" in cause.said
    assert cause.evidence[0].text == "stalled" and cause.next.endswith("--around first-failure")
    made.write(CallWentOn(5, "rew_inf", 0, 2200.0))
    assert cause_of(made.run, 0) is None


def test_of_several_calls_that_a_worker_stalls_the_one_that_it_executes_is_the_hang(made: MadeRun) -> None:
    made.write(CallStalled(5, "rew_inf", 0, (1,), 100.0, 3.0, (1,), "worker-1 is running score", executing=(1,)))
    made.write(CallStalled(5, "ref_inf", 0, (1,), 90.0, 3.0, (1,), "worker-1 is running score"))
    cause = cause_of(made.run, 0)
    assert cause is not None and cause.verdict == "hang in rew_inf of step 5"


@pytest.mark.parametrize(
    ("cause", "when", "verdict"),
    [
        (JobCause.NODE_FAILURE, 5.0, "node failure"),
        (JobCause.PREEMPTED, 5.0, "preempted"),
        (JobCause.NODE_FAILURE, 500.0, "preempted"),
    ],
)
def test_a_node_that_was_told_to_go_because_it_fails_is_no_preemption(
    tmp_path: Path, cause: JobCause, when: float, verdict: str
) -> None:
    made = told_to_go(tmp_path)
    ended_job(made, "workers-1.125.0", Ended(cause, 75, when))
    found = cause_of(made.run, 0)
    assert found is not None and found.verdict == verdict
    assert found.who == ("agent-1" if verdict == "node failure" else "")


@pytest.mark.parametrize(
    ("state", "verdict", "who"),
    [
        ("NODE_FAIL", "node failure", "agent-1"),
        ("PREEMPTED", "preempted", ""),
        ("REQUEUED", "preempted", ""),
        ("CANCELLED by 1000", "cancelled", ""),
        ("TIMEOUT", "time limit", ""),
        ("RUNNING", "preempted", ""),
        ("", "preempted", ""),
    ],
)
def test_accounting_tells_why_slurm_has_ended_a_node_s_job(tmp_path: Path, state: str, verdict: str, who: str) -> None:
    """Its process has only got SIGTERM, and the job has been queued again by the time that its hook asks."""
    made = told_to_go(tmp_path)
    ended_job(made, "workers-1.125.0", Ended(JobCause.LEFT_TO_SLURM, 76, 5.0))
    if state:
        # What an older start came to says nothing of this one.
        keep_account(made.run, "submission", "workers-1.125.0", accounts("NODE_FAIL", state))
    found = cause_of(made.run, 0)
    assert found is not None and (found.verdict, found.who) == (verdict, who)
    said = {(it.file.rpartition("/")[0].rpartition("/")[2], it.text) for it in found.evidence[1:]}
    assert said == (set() if verdict == "preempted" else {("exits", "left to slurm"), ("accounting", state)})


@pytest.mark.parametrize(
    ("left_s", "caught", "verdict"),
    [(150.0, "SIGUSR2", "time limit"), (3000.0, "SIGUSR2", "preempted"), (150.0, "SIGTERM", "preempted")],
)
def test_a_signal_near_the_end_of_the_allocation_is_the_warning_of_its_time_limit(
    tmp_path: Path, left_s: float, caught: str, verdict: str
) -> None:
    made = made_on_slurm(tmp_path / "run")
    made.begin()
    made.write(AllocationEnds({-1: made_at(made) + left_s}))
    found = ended(made, "preempted", f"the master got {caught}", exit_code=75, asked=True)
    assert found.verdict == verdict
    assert [it.text for it in found.evidence] == ["ending", *(["allocation"] if verdict == "time limit" else [])]


def test_a_job_that_its_own_hook_queued_again_was_not_preempted(tmp_path: Path) -> None:
    made = made_on_slurm(tmp_path / "run")
    made.begin()
    reclaim(made, pid_started=1, time=1.0)
    ended_job(made, "master.123.0", Ended(JobCause.KILLED, 137, 5.0))
    keep_account(made.run, "submission", "master.123.0", accounts("REQUEUED"))
    found = cause_of(made.run, 0)
    assert found is not None and (found.verdict, found.who) == ("node failure", "master")


def test_of_several_starts_of_a_node_the_one_counts_that_was_in_the_attempt(tmp_path: Path) -> None:
    made = made_on_slurm(tmp_path / "run")
    made.begin()
    reclaim(made, time=1.0)
    made.write(AgentConnected(1, "n1", 7, True))
    made.write(AttemptEnded("lost", "agent-1: silent for 9 s", 75, "agent-1"))
    came = made_at(made)
    ended_job(made, "workers-1.125.0", Ended(JobCause.TIME_LIMIT, 76, came - 1.0))
    ended_job(made, "workers-1.125.1", Ended(JobCause.OUT_OF_MEMORY, 137, came + 1.0))
    found = cause_of(made.run, 0)
    assert found is not None and found.verdict == "host memory"


@pytest.mark.parametrize(
    ("cause", "code", "verdict", "waits"),
    [
        (JobCause.USER_ERROR, 64, "configuration", False),
        (JobCause.INTERNAL_ERROR, 127, "configuration", False),
        (JobCause.INTERNAL_ERROR, 70, "internal", False),
        (JobCause.KILLED, 1, "node failure", True),
        (JobCause.OUT_OF_MEMORY, 137, "host memory", True),
    ],
)
def test_a_job_that_ended_before_the_run_began_is_told_by_what_it_printed(
    tmp_path: Path, cause: JobCause, code: int, verdict: str, waits: bool
) -> None:
    made = made_on_slurm(tmp_path / "run")
    ended_job(made, "master.123.0", Ended(cause, code, 5.0))
    printed = made.run.submitit_folder("submission") / "master-123.out"
    printed.write_text("\n".join(f"line {number}" for number in range(20)) + "\nthere is no apptainer\n")
    *waiting, found = causes_of(made.run)
    assert [it.verdict for it in waiting] == ["waiting for Slurm"] * waits
    assert (found.attempt, found.verdict, found.who) == (None, verdict, "master")
    assert found.said.endswith("line 19\nthere is no apptainer") and "line 3\n" not in found.said
    assert [(it.file.rpartition("/")[2], it.line) for it in found.evidence] == [
        ("master.123.0.json", 0),
        ("master-123.out", 21),
    ]
    assert newest_cause(made.run) == found


@pytest.mark.parametrize(
    ("cause", "code", "verdict"),
    [(JobCause.USER_ERROR, 64, "configuration"), (JobCause.OUT_OF_MEMORY, 137, "host memory")],
)
def test_a_master_that_waited_in_vain_for_a_node_is_explained_by_that_node_s_job(
    tmp_path: Path, cause: JobCause, code: int, verdict: str
) -> None:
    made = made_on_slurm(tmp_path / "run")
    made.begin()
    reclaim(made, time=6.0)
    ended_job(made, "workers-1.125.0", Ended(cause, code, 5.0))  # before the master had begun
    found = ended(made, "failed", "node 1: job 124_1 is not started again", exit_code=93)
    assert (found.verdict, found.who) == (verdict, "agent-1")
    assert ended(made, "failed", "node 1: job 124_1 was cancelled. `hpcrl resume` …", exit_code=93).kind == "cancelled"

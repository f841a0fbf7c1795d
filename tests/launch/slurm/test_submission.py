"""Each job is sent exactly once, whatever happens to sbatch's answer or to whoever sends it; against a fake Slurm."""

import dataclasses
import errno
from pathlib import Path
from typing import Any

import pytest
from support.chaos import create_run, toy_experiment
from support.fake_slurm.cluster import FakeSlurm, Fate

from hpcrl.config.slurm import SlurmConfig
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import InternalError
from hpcrl.launch.slurm.allocation import SlurmAllocation
from hpcrl.launch.slurm.commands import AmbiguousError, Slurm, SlurmError
from hpcrl.launch.slurm.job import main
from hpcrl.launch.slurm.launcher import POLL_S, SlurmLauncher
from hpcrl.launch.slurm.render import Target, render
from hpcrl.launch.slurm.requeue import RequeueRules
from hpcrl.launch.slurm.submission import (
    Intent,
    finish_intents,
    read_intents,
    script_path,
    send_all,
    send_successor,
    successor_is_under_way,
    write_intent,
)
from hpcrl.recipes.algorithm import experiment_from


class Killed(BaseException):
    """Stands for the SIGKILL of `hpcrl submit`."""


@pytest.fixture
def fake(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(tmp_path / "slurm")


def made_run(folder: Path, **cluster: Any) -> RunDirectory:
    experiment = toy_experiment()
    changed = dataclasses.replace(experiment.cluster, type="slurm", topology="array", nodes=2, **cluster)
    return create_run(folder / "run", dataclasses.replace(experiment, cluster=changed))


def intent_of(run: RunDirectory, nonce: str = "n1") -> Intent:
    experiment = toy_experiment()
    cluster = dataclasses.replace(experiment.cluster, type="slurm", topology="array", nodes=2)
    run.files.make_directory(run.submitit_folder(nonce))
    scripts = render(cluster, "array", Target(run.root, "toy", nonce))
    return write_intent(run, nonce, "array", scripts, {name: {"": RequeueRules()} for name in ("master", "workers")})


def queued(fake: FakeSlurm) -> list[int]:
    return [job["job"] for job in fake.state["jobs"]]


def test_both_jobs_are_sent_and_written_down(fake: FakeSlurm, tmp_path: Path) -> None:
    run = made_run(tmp_path)
    submission = send_all(run, fake.commands(), intent_of(run), fake.advance)
    assert submission.jobs == {"master": "100", "workers": "101"}
    assert queued(fake) == [100, 101, 101]
    assert any("after:100" in word for call in fake.state["calls"] for word in call)


@pytest.mark.parametrize("fate", ["lose", "lose after", "silent after", "hang after"])
@pytest.mark.parametrize("which", [0, 1])
def test_an_answer_that_got_lost_leads_to_one_job(fake: FakeSlurm, tmp_path: Path, fate: Fate, which: int) -> None:
    run = made_run(tmp_path)
    intent = intent_of(run)
    slurm = fake.commands(timeout_s=4.0)
    if which == 0:
        fake.plan("sbatch", fate)
    else:
        run = RunDirectory(run.root, lambda point: fake.plan("sbatch", fate) if point == "submit.master" else None)
    submission = send_all(run, slurm, intent, fake.advance)
    jobs = [int(job) for job in submission.jobs.values()]
    assert sorted(set(queued(fake))) == jobs and len(queued(fake)) == 3


@pytest.mark.parametrize("seconds", [2, 8, 25])
def test_a_job_that_squeue_does_not_show_at_once_is_found_all_the_same(
    fake: FakeSlurm, tmp_path: Path, seconds: int
) -> None:
    run = made_run(tmp_path)
    fake.set(visible_after_s=seconds)
    fake.plan("sbatch", "lose after")
    send_all(run, fake.commands(), intent_of(run), fake.advance)
    assert len(queued(fake)) == 3


def test_a_refusal_is_told_and_nothing_is_sent_again(fake: FakeSlurm, tmp_path: Path) -> None:
    run = made_run(tmp_path)
    intent = intent_of(run)
    fake.plan("sbatch", "refuse", words="sbatch: error: invalid partition specified: gpuu")
    with pytest.raises(SlurmError, match="gpuu") as raised:
        send_all(run, fake.commands(), intent, fake.advance)
    assert not isinstance(raised.value, AmbiguousError)
    assert queued(fake) == [] and run.submissions() == []


@pytest.mark.parametrize("point", ["submit.master", "submit.workers"])
def test_what_a_killed_submit_has_sent_is_found_and_what_is_not_whole_is_cancelled(
    fake: FakeSlurm, tmp_path: Path, point: str
) -> None:
    made = made_run(tmp_path)
    intent = intent_of(made)

    def kill(here: str) -> None:
        if here == point:
            raise Killed

    with pytest.raises(Killed):
        send_all(RunDirectory(made.root, kill), fake.commands(), intent, fake.advance)
    assert made.submissions() == [] and read_intents(made) == [intent]
    finish_intents(made, fake.commands())
    (submission,) = made.submissions()
    states = {job["state"] for job in fake.state["jobs"]}
    if point == "submit.master":
        assert submission.jobs == {"master": "100"} and states == {"CANCELLED"}
    else:
        assert submission.jobs == {"master": "100", "workers": "101"} and states == {"PENDING"}
    finish_intents(made, fake.commands())
    assert len(made.submissions()) == 1


def test_a_successor_is_sent_once_whoever_asks(fake: FakeSlurm, tmp_path: Path) -> None:
    run = made_run(tmp_path)
    send_all(run, fake.commands(), intent_of(run), fake.advance)
    first = send_successor(run, fake.commands(), "n1", "workers", "103.0", 1)
    assert first is not None
    assert send_successor(run, fake.commands(), "n1", "workers", "103.0", 1) is None
    assert not successor_is_under_way(run, "n1", "103.0")
    assert [job["element"] for job in fake.state["jobs"] if job["job"] == int(first)] == [1]
    assert {str(sub.jobs["workers"]) for sub in run.submissions() if "workers" in sub.jobs} == {"101", first}


def test_a_successor_keeps_the_users_comment(fake: FakeSlurm, tmp_path: Path) -> None:
    run = made_run(tmp_path)
    cluster = dataclasses.replace(
        toy_experiment().cluster, type="slurm", topology="array", nodes=2, slurm=SlurmConfig(comment="project 7")
    )
    run.files.make_directory(run.submitit_folder("n1"))
    scripts = render(cluster, "array", Target(run.root, "toy", "n1"))
    rules = {name: {"": RequeueRules()} for name in ("master", "workers")}
    send_all(run, fake.commands(), write_intent(run, "n1", "array", scripts, rules), fake.advance)
    job = send_successor(run, fake.commands(), "n1", "workers", "103.0", 1)
    (comment,) = [each["comment"] for each in fake.state["jobs"] if str(each["job"]) == job]
    assert comment == "hpcrl:n1:workers in-place-of-103.0 project 7"


@pytest.mark.parametrize("fate", ["lose", "lose after", "hang after"])
def test_a_successor_whose_answer_got_lost_is_found_and_not_sent_twice(
    fake: FakeSlurm, tmp_path: Path, fate: Fate
) -> None:
    run = made_run(tmp_path)
    send_all(run, fake.commands(), intent_of(run), fake.advance)
    before = queued(fake)
    fake.plan("sbatch", fate)
    job = send_successor(run, fake.commands(timeout_s=4.0), "n1", "workers", "103.0", 1, sleep=fake.advance)
    assert [str(each) for each in queued(fake) if each not in before] == [job]


@pytest.mark.parametrize("fate", ["lose", "lose after"])
def test_a_successor_that_was_announced_and_never_sent_is_sent_by_whoever_finds_out(
    fake: FakeSlurm, tmp_path: Path, fate: Fate
) -> None:
    run = made_run(tmp_path)
    send_all(run, fake.commands(), intent_of(run), fake.advance)

    def killed(_seconds: float) -> None:
        raise Killed

    fake.plan("sbatch", fate)
    with pytest.raises(Killed):
        send_successor(run, fake.commands(), "n1", "workers", "103.0", 1, sleep=killed)
    assert successor_is_under_way(run, "n1", "103.0")
    assert send_successor(run, fake.commands(), "n1", "workers", "103.0", 1) is None
    job = send_successor(run, fake.commands(), "n1", "workers", "103.0", 1, again=True, sleep=fake.advance)
    assert job is not None and run.jobs_of("n1")[job] == "workers"
    assert sum(each["element"] == 1 and each["job"] > 101 for each in fake.state["jobs"]) == 1
    assert not successor_is_under_way(run, "n1", "103.0")


def test_a_submit_costs_five_calls_and_watching_one_in_fifteen_seconds(
    fake: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made_run(tmp_path)
    slurm = fake.commands()
    launcher = SlurmLauncher(slurm)
    submission = launcher.start(run, "n1")
    assert slurm.rpcs <= 5
    now = [0.0]
    monkeypatch.setattr("hpcrl.launch.slurm.launcher.time.monotonic", lambda: now[0])
    before = slurm.rpcs
    for second in range(60):
        now[0] = 1000.0 + second
        assert launcher.living(run, submission) == ["master", "workers"]
    assert slurm.rpcs - before <= 60 / POLL_S


def test_a_controller_that_is_away_does_not_end_a_watch(fake: FakeSlurm, tmp_path: Path) -> None:
    run = made_run(tmp_path)
    launcher = SlurmLauncher(fake.commands())
    submission = launcher.start(run, "n1")
    fake.away(600)
    assert launcher.living(run, submission) == ["master", "workers"]


def test_a_run_whose_master_waits_in_the_queue_is_stopped_by_cancelling_it(fake: FakeSlurm, tmp_path: Path) -> None:
    run = made_run(tmp_path)
    launcher = SlurmLauncher(fake.commands())
    submission = launcher.start(run, "n1")
    assert not launcher.accepts_commands(run, submission)
    launcher.end(run, submission)
    assert {job["state"] for job in fake.state["jobs"]} == {"CANCELLED"}
    assert launcher.living(run, submission) == []


@pytest.mark.parametrize(
    ("state", "is_alive"),
    [("PENDING", True), ("RUNNING", True), ("REQUEUED", True), ("COMPLETING", False), ("CANCELLED", False)],
)
def test_a_run_whose_master_is_just_being_ended_can_be_resumed(
    fake: FakeSlurm, tmp_path: Path, state: str, is_alive: bool
) -> None:
    run = made_run(tmp_path)
    launcher = SlurmLauncher(fake.commands())
    submission = launcher.start(run, "n1")
    fake.end(100, state)
    assert launcher.is_alive(run, submission) == is_alive


def test_a_master_that_runs_hears(fake: FakeSlurm, tmp_path: Path) -> None:
    run = made_run(tmp_path)
    launcher = SlurmLauncher(fake.commands())
    submission = launcher.start(run, "n1")
    fake.run(int(submission.jobs["master"]))
    assert launcher.accepts_commands(run, submission)


def begin_job(run: RunDirectory, role: str, environ: dict[str, str]) -> None:
    """A job's process on a node, up to where it would become master or agent."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        patch.setattr("hpcrl.launch.slurm.job.entry", lambda *_, **__: 0)
        assert main([str(run.root), "n1", role]) == 0


def send_by_hand(fake: FakeSlurm, run: RunDirectory, name: str, *options: str) -> int:
    return int(fake.commands().sbatch(script_path(run, "n1", name), options))


def test_a_job_that_was_sent_by_hand_is_known_seen_and_ended_when_it_has_begun(fake: FakeSlurm, tmp_path: Path) -> None:
    run = made_run(tmp_path)
    launcher = SlurmLauncher(fake.commands())
    submission = launcher.start(run, "n1")
    for job in (100, 101):
        fake.end(job, "COMPLETED")
    assert launcher.living(run, submission) == []
    sent = send_by_hand(fake, run, "workers", "--array=1,0")
    for element, number in ((1, sent), (0, sent + 1)):
        environ = {"SLURM_ARRAY_JOB_ID": str(sent), "SLURM_ARRAY_TASK_ID": str(element), "SLURM_JOB_ID": str(number)}
        begin_job(run, "agent", environ)
    begin_job(run, "master", {"SLURM_JOB_ID": str(send_by_hand(fake, run, "master"))})
    assert run.jobs_of("n1") == {"100": "master", "101": "workers", str(sent): "workers", str(sent + 2): "master"}
    assert sorted(SlurmLauncher(fake.commands()).living(run, submission)) == ["master", "workers"]
    absent = SlurmAllocation(run.root, "n1", fake.commands()).replace_missing({1: (102, 0)})
    assert absent[1].standing == "queued" and f"job {sent}_1" in absent[1].what, "it is queued again already"
    launcher.end(run, submission)
    assert {job["state"] for job in fake.state["jobs"] if job["job"] >= sent} == {"CANCELLED"}


def test_a_job_of_one_script_is_written_down_by_its_master_alone(fake: FakeSlurm, tmp_path: Path) -> None:
    run = made_run(tmp_path)
    run.record_submission("n1", {"run": "100"})
    begin_job(run, "agent", {"SLURM_JOB_ID": "200"})
    begin_job(run, "master", {"SLURM_JOB_ID": "100"})
    assert run.jobs_of("n1") == {"100": "run"}
    begin_job(run, "master", {"SLURM_JOB_ID": "200", "SLURM_RESTART_COUNT": "1"})
    assert run.jobs_of("n1") == {"100": "run", "200": "run"}


def test_a_job_that_starts_before_submit_has_written_it_down_leaves_that_to_submit(
    fake: FakeSlurm, tmp_path: Path
) -> None:
    made = made_run(tmp_path)
    begun = []

    def begin(point: str) -> None:
        if point == "submit.master":
            begin_job(made, "master", {"SLURM_JOB_ID": "100"})
            begun.append(point)

    run = RunDirectory(made.root, begin)
    submission = send_all(run, fake.commands(), intent_of(made), fake.advance)
    assert begun and made.submissions() == [submission]


def test_a_successor_that_starts_before_it_is_written_down_writes_itself_down(fake: FakeSlurm, tmp_path: Path) -> None:
    made = made_run(tmp_path)
    send_all(made, fake.commands(), intent_of(made), fake.advance)
    with pytest.MonkeyPatch.context() as patch:
        send = Slurm.sbatch

        def sent_and_started(slurm: Slurm, *arguments: Any) -> str:
            job = send(slurm, *arguments)
            begin_job(made, "agent", {"SLURM_ARRAY_JOB_ID": job, "SLURM_ARRAY_TASK_ID": "1", "SLURM_JOB_ID": job})
            assert job in made.jobs_of("n1")
            return job

        patch.setattr(Slurm, "sbatch", sent_and_started)
        job = send_successor(made, fake.commands(), "n1", "workers", "101_1.0", 1)
    assert made.jobs_of("n1") == {"100": "master", "101": "workers", job: "workers"}


def test_a_job_that_cannot_be_written_down_runs_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made_run(tmp_path)
    run.record_submission("n1", {"run": "100"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDirectory, "record_successor", _no_space)
        begin_job(run, "master", {"SLURM_JOB_ID": "200"})
    assert "will not know this job: [Errno 28]" in capsys.readouterr().err


def _no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_to_end_a_submission_is_to_end_what_nobody_has_written_down_with_two_calls(
    fake: FakeSlurm, tmp_path: Path
) -> None:
    """Sent by hand and not begun yet, or taken by Slurm after all when sbatch's answer had been given up."""
    run = made_run(tmp_path)
    slurm = fake.commands()
    launcher = SlurmLauncher(slurm)
    submission = launcher.start(run, "n1")
    send_by_hand(fake, run, "workers", "--array=1")
    intent_of(run, "n2")
    other = int(slurm.sbatch(script_path(run, "n2", "master")))
    slurm.calls.clear()
    launcher.end(run, submission)
    assert slurm.calls == {"squeue": 1, "scancel": 1}
    assert {job["job"] for job in fake.state["jobs"] if job["state"] != "CANCELLED"} == {other}


def test_what_is_written_down_is_ended_also_where_squeue_does_not_answer(fake: FakeSlurm, tmp_path: Path) -> None:
    run = made_run(tmp_path)
    launcher = SlurmLauncher(fake.commands())
    submission = launcher.start(run, "n1")
    fake.plan("squeue", "lose")
    launcher.end(run, submission)
    assert {job["state"] for job in fake.state["jobs"]} == {"CANCELLED"}


def test_a_grace_that_is_too_long_is_told_by_the_dry_run_and_by_submit(
    fake: FakeSlurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made_run(tmp_path, grace_s=25.0, slurm=SlurmConfig(partition="low"))
    launcher = SlurmLauncher(fake.commands())
    launcher.start(run, "n1")
    said = capsys.readouterr().out
    assert "Set cluster.grace_s to 0." in said and "GraceTime is 0" in said
    described = launcher.describe(experiment_from(run.read_run().experiment), run.root)
    assert "Set cluster.grace_s to 0." in described


def test_a_damaged_intent_is_named_unless_what_it_says_was_done(fake: FakeSlurm, tmp_path: Path) -> None:
    run = made_run(tmp_path)
    send_all(run, fake.commands(), intent_of(run), fake.advance)
    intent_of(run, "n2")
    for nonce in ("n1", "n2"):
        (run.submitit_folder(nonce) / "intent.json").write_bytes(b"{")
    with pytest.raises(InternalError, match=r"n2/intent\.json is damaged.*comment has n2") as refused:
        finish_intents(run, fake.commands())
    assert refused.value.advice
    (run.submitit_folder("n2") / "intent.json").unlink()
    finish_intents(run, fake.commands())
    assert queued(fake) == [100, 101, 101]

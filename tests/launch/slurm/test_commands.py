"""The commands, run against a fake Slurm whose executables are real: what is asked, what fails how, what is found."""

import os
from pathlib import Path

import pytest
from support.fake_slurm.cluster import VERSIONS, FakeSlurm

from hpcrl.errors import ExitCode
from hpcrl.launch.slurm.commands import (
    AmbiguousError,
    Requeued,
    Slurm,
    SlurmError,
    SlurmUnavailableError,
    clean_environment,
)
from hpcrl.launch.slurm.jobs import JobId, State


@pytest.fixture
def fake(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(tmp_path / "slurm")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """An array of three elements, in a folder with an odd name."""
    return written(tmp_path, "--array=0-2", "--partition=gpu", "--job-name=ppo-workers", "--comment=hpcrl:n1:workers")


def written(folder: Path, *options: str, name: str = "workers.sbatch") -> Path:
    path = folder / name
    path.write_text("#!/bin/bash\n" + "".join(f"#SBATCH {option}\n" for option in options) + "srun true\n")
    return path


def test_a_job_is_sent_and_seen(fake: FakeSlurm, script: Path) -> None:
    slurm = fake.commands()
    job = slurm.sbatch(script)
    assert job == "100"
    seen = slurm.squeue([job])
    assert [str(each.id) for each in seen] == ["100_0", "100_1", "100_2"]
    assert {each.comment for each in seen} == {"hpcrl:n1:workers"}
    assert slurm.rpcs == 2
    assert slurm.calls == {"sbatch": 1, "squeue": 1}


def test_arguments_count_before_the_scripts(fake: FakeSlurm, script: Path) -> None:
    slurm = fake.commands()
    job = slurm.sbatch(script, ["--partition=low", "--array=1"])
    (seen,) = slurm.squeue([job])
    assert (seen.partition, seen.id) == ("low", JobId(100, element=1))


def test_one_element_is_asked_for_alone(fake: FakeSlurm, script: Path) -> None:
    slurm = fake.commands()
    slurm.sbatch(script)
    assert [each.id for each in slurm.squeue([JobId(100, element=1)])] == [JobId(100, element=1)]


def test_a_job_that_nobody_knows_is_not_there(fake: FakeSlurm) -> None:
    assert fake.commands().squeue(["999"]) == ()


def test_all_jobs_of_a_user_are_one_question(fake: FakeSlurm, script: Path, tmp_path: Path) -> None:
    slurm = fake.commands()
    slurm.sbatch(script)
    slurm.sbatch(written(tmp_path, "--job-name=other", name="other.sbatch"))
    assert len(slurm.squeue()) == 4
    assert slurm.calls["squeue"] == 1


def test_an_ended_job_is_seen_for_minutes_without_accounting(fake: FakeSlurm, script: Path) -> None:
    fake.set(accounting=False)
    slurm = fake.commands()
    slurm.sbatch(script)
    fake.run(100, element=0)
    fake.end(100, "NODE_FAIL", element=0)
    states = {str(each.id): each.state.state for each in slurm.squeue(["100"])}
    assert states["100_0"] is State.NODE_FAIL
    fake.advance(301)
    assert "100_0" not in {str(each.id) for each in slurm.squeue(["100"])}


def test_heterogeneous_components_are_seen(fake: FakeSlurm, tmp_path: Path) -> None:
    slurm = fake.commands()
    job = slurm.sbatch(written(tmp_path, "--partition=cpu", "hetjob", "--partition=gpu"))
    assert [str(each.id) for each in slurm.squeue([job])] == ["100+0", "100+1"]


def test_every_incarnation_is_told(fake: FakeSlurm, script: Path) -> None:
    slurm = fake.commands()
    slurm.sbatch(script)
    fake.run(100, element=1)
    fake.advance(60)
    fake.preempt(100, element=1)
    fake.advance(130)
    fake.run(100, nodes="gpu3", element=1)
    incarnations = slurm.sacct(["100"])[JobId(100, element=1)]
    assert [each.state.state for each in incarnations] == [State.PREEMPTED, State.RUNNING]
    assert [each.nodes for each in incarnations] == ["gpu1", "gpu3"]


def test_without_accounting_sacct_says_that_it_is_missing(fake: FakeSlurm) -> None:
    fake.set(accounting=False)
    with pytest.raises(SlurmUnavailableError, match="accounting does not answer") as raised:
        fake.commands().sacct(["1"])
    assert raised.value.missing == "accounting"


def test_only_pending_elements_are_cancelled_where_that_is_asked(fake: FakeSlurm, script: Path) -> None:
    slurm = fake.commands()
    slurm.sbatch(script)
    fake.run(100, element=0)
    slurm.scancel(["100"], state="PENDING")
    states = {str(each.id): each.state.state for each in slurm.squeue(["100"])}
    assert states == {"100_0": State.RUNNING, "100_1": State.CANCELLED, "100_2": State.CANCELLED}


def test_cancelling_what_is_gone_is_no_error(fake: FakeSlurm, script: Path) -> None:
    slurm = fake.commands()
    slurm.sbatch(script)
    slurm.scancel(["999", "100"])
    assert all(not each.state.is_alive for each in slurm.squeue(["100"]))


def test_cancelling_nothing_asks_nobody(fake: FakeSlurm) -> None:
    slurm = fake.commands()
    slurm.scancel([])
    assert slurm.rpcs == 0


def test_cancelling_while_the_controller_is_away_is_an_error(fake: FakeSlurm, script: Path) -> None:
    slurm = fake.commands()
    slurm.sbatch(script)
    fake.away(10)
    with pytest.raises(SlurmUnavailableError, match="slurmctld"):
        slurm.scancel(["100"])


def test_a_running_element_is_requeued_alone(fake: FakeSlurm, script: Path) -> None:
    slurm = fake.commands()
    slurm.sbatch(script)
    fake.run(100)
    assert slurm.requeue(JobId(100, element=1)) is Requeued.DONE
    states = [each.state.state for each in slurm.squeue(["100"])]
    assert states == [State.RUNNING, State.PENDING, State.RUNNING]


def test_a_job_that_slurm_has_queued_itself_is_no_error(fake: FakeSlurm, script: Path) -> None:
    slurm = fake.commands()
    slurm.sbatch(script)
    fake.run(100, element=0)
    fake.preempt(100, element=0)
    assert slurm.requeue("100_0") is Requeued.ALREADY


def test_a_forbidden_requeue_is_told(fake: FakeSlurm, script: Path) -> None:
    slurm = fake.commands()
    slurm.sbatch(script)
    fake.run(100)
    fake.set(requeue_allowed=False)
    assert slurm.requeue("100_0") is Requeued.REFUSED


def test_a_component_cannot_be_requeued(fake: FakeSlurm, tmp_path: Path) -> None:
    slurm = fake.commands()
    slurm.sbatch(written(tmp_path, "--partition=cpu", "hetjob", "--partition=gpu"))
    fake.run(100)
    with pytest.raises(SlurmError, match="not heterogeneous job leader"):
        slurm.requeue("100+1")


def test_requeueing_what_is_not_there_is_an_error(fake: FakeSlurm) -> None:
    with pytest.raises(SlurmError, match="Invalid job id specified"):
        fake.commands().requeue("999")


def test_a_begin_is_set(fake: FakeSlurm, script: Path) -> None:
    slurm = fake.commands()
    slurm.sbatch(script)
    slurm.set_begin("100_2", 59.6)
    begins = {each["element"]: each["begin"] for each in fake.state["jobs"]}
    assert begins == {0: 0, 1: 0, 2: fake.state["now"] + 60}


def test_a_job_of_a_comment_is_found(fake: FakeSlurm, script: Path, tmp_path: Path) -> None:
    slurm = fake.commands()
    slurm.sbatch(script)
    slurm.sbatch(written(tmp_path, "--comment=hpcrl:n1:workers2", name="b"))
    slurm.sbatch(written(tmp_path, '--comment="hpcrl:n1:master mail|me"', name="c"))
    assert slurm.find_by_comment("hpcrl:n1:workers") == ("100",)
    assert slurm.find_by_comment("hpcrl:n1:master") == ("104",)
    assert slurm.find_by_comment("hpcrl:n2:master") == ()


def test_a_job_that_was_sent_twice_is_found_twice(fake: FakeSlurm, script: Path) -> None:
    slurm = fake.commands()
    slurm.sbatch(script)
    slurm.sbatch(script)
    assert slurm.find_by_comment("hpcrl:n1:workers") == ("100", "103")


def test_a_job_that_slurmctld_forgot_is_found_in_the_accounting(fake: FakeSlurm, tmp_path: Path) -> None:
    fake.set(accounting_comments=True)
    slurm = fake.commands()
    slurm.sbatch(written(tmp_path, "--comment=hpcrl:n1:run"))
    fake.end(100, "CANCELLED")
    fake.advance(400)
    assert slurm.find_by_comment("hpcrl:n1:run") == ("100",)


def test_jobs_of_several_comments_are_found_with_one_call_and_one_of_the_accounting(
    fake: FakeSlurm, tmp_path: Path
) -> None:
    fake.set(accounting_comments=True)
    slurm = fake.commands()
    names = ("master", "workers", "run")
    for name in names[:2]:
        slurm.sbatch(written(tmp_path, f"--comment=hpcrl:n1:{name}", name=name))
    slurm.calls.clear()
    assert slurm.find_by_comments(f"hpcrl:n1:{name}" for name in names[:2]) == {
        "hpcrl:n1:master": ("100",),
        "hpcrl:n1:workers": ("101",),
    }
    assert slurm.calls == {"squeue": 1}
    fake.end(100, "CANCELLED")
    fake.advance(400)
    found = slurm.find_by_comments(f"hpcrl:n1:{name}" for name in names)
    assert list(found.values()) == [("100",), ("101",), ()]
    assert slurm.calls == {"squeue": 2, "sacct": 1}


def test_what_has_ended_is_not_in_the_queue(fake: FakeSlurm, script: Path) -> None:
    slurm = fake.commands()
    slurm.sbatch(script)
    slurm.sbatch(script)
    assert slurm.find_in_queue(["hpcrl:n1:workers", "hpcrl:n1:run"]) == ("100", "103")
    fake.end(100, "COMPLETED")
    assert slurm.find_in_queue(["hpcrl:n1:workers"]) == ("103",)
    assert slurm.find_in_queue(["hpcrl:n2:workers"]) == ()


def test_a_job_is_found_without_accounting(fake: FakeSlurm, script: Path) -> None:
    fake.set(accounting=False)
    slurm = fake.commands()
    assert slurm.find_by_comment("hpcrl:n1:workers") == ()
    slurm.sbatch(script)
    assert slurm.find_by_comment("hpcrl:n1:workers") == ("100",)


def test_a_blind_search_finds_nothing_by_raising(fake: FakeSlurm) -> None:
    fake.away(600)
    with pytest.raises(SlurmUnavailableError, match="slurmctld does not answer"):
        fake.commands().find_by_comment("hpcrl:n1:workers")
    fake.advance(600)
    assert fake.commands().find_by_comment("hpcrl:n1:workers") == ()


def test_a_job_may_be_seen_later_than_it_was_queued(fake: FakeSlurm, script: Path) -> None:
    fake.set(visible_after_s=30)
    slurm = fake.commands()
    slurm.sbatch(script)
    assert slurm.find_by_comment("hpcrl:n1:workers") == ()
    fake.advance(30)
    assert slurm.find_by_comment("hpcrl:n1:workers") == ("100",)


@pytest.mark.parametrize("fate", ["lose after", "silent after"])
def test_a_lost_reply_of_sbatch_leaves_open_whether_it_queued(fake: FakeSlurm, script: Path, fate: str) -> None:
    fake.plan("sbatch", fate)  # type: ignore[arg-type]
    slurm = fake.commands()
    with pytest.raises(AmbiguousError):
        slurm.sbatch(script)
    assert slurm.find_by_comment("hpcrl:n1:workers") == ("100",)


def test_a_lost_request_of_sbatch_looks_the_same(fake: FakeSlurm, script: Path) -> None:
    fake.plan("sbatch", "lose")
    slurm = fake.commands()
    with pytest.raises(AmbiguousError, match="Socket timed out"):
        slurm.sbatch(script)
    assert slurm.find_by_comment("hpcrl:n1:workers") == ()


def test_an_sbatch_that_hangs_is_killed_and_its_job_found(fake: FakeSlurm, script: Path) -> None:
    fake.plan("sbatch", "hang after")
    slurm = fake.commands(timeout_s=4.0)
    with pytest.raises(AmbiguousError, match="no answer in 4 s"):
        slurm.sbatch(script)
    assert fake.commands().find_by_comment("hpcrl:n1:workers") == ("100",)


def test_while_the_controller_is_away_sbatch_is_ambiguous_and_queues_nothing(fake: FakeSlurm, script: Path) -> None:
    fake.away(600)
    with pytest.raises(AmbiguousError, match="Unable to contact slurm controller"):
        fake.commands().sbatch(script)
    assert fake.state["jobs"] == []


def test_an_invalid_partition_is_a_refusal(fake: FakeSlurm, script: Path) -> None:
    with pytest.raises(SlurmError, match="Invalid partition name specified") as raised:
        fake.commands().sbatch(script, ["--partition=nowhere"])
    assert type(raised.value) is SlurmError
    assert raised.value.status == 1
    assert raised.value.command[0] == "sbatch"
    assert raised.value.exit_code == ExitCode.INTERNAL


@pytest.mark.parametrize(
    "words",
    [
        "Invalid account or account/partition combination specified",
        "Requested node configuration is not available",
        "Invalid qos specification",
        "Requested time limit is invalid (missing or exceeds some limit)",
        "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
        "Invalid job array specification",
        "Access/permission denied",
        "Unable to allocate resources: Invalid generic resource (gres) specification",
    ],
)
def test_a_definite_refusal_is_definite(fake: FakeSlurm, script: Path, words: str) -> None:
    fake.plan("sbatch", "refuse", words=f"sbatch: error: Batch job submission failed: {words}")
    with pytest.raises(SlurmError) as raised:
        fake.commands().sbatch(script)
    assert type(raised.value) is SlurmError


@pytest.mark.parametrize(
    "words",
    [
        "Socket timed out on send/recv operation",
        "Unable to contact slurm controller (connect failure)",
        "Unable to contact slurm controller (receive failure)",
        "Zero Bytes were transmitted or received",
        "Unexpected message received",
        "Transport endpoint is not connected",
    ],
)
def test_what_leaves_it_open_is_ambiguous(fake: FakeSlurm, script: Path, words: str) -> None:
    fake.plan("sbatch", "refuse", words=f"sbatch: error: Batch job submission failed: {words}")
    with pytest.raises(AmbiguousError):
        fake.commands().sbatch(script)


@pytest.mark.parametrize(
    "words",
    [
        "Rate limit exceeded, please retry momentarily",
        "Slurm backup controller in standby mode",
        "Slurm temporarily unable to accept job, sleeping and retrying",
    ],
)
def test_a_busy_controller_has_queued_nothing(fake: FakeSlurm, script: Path, words: str) -> None:
    fake.plan("sbatch", "refuse", words=f"sbatch: error: Batch job submission failed: {words}")
    with pytest.raises(SlurmUnavailableError):
        fake.commands().sbatch(script)


@pytest.mark.parametrize("command", ["squeue", "scontrol"])
def test_a_question_that_got_lost_says_who_is_missing(fake: FakeSlurm, command: str) -> None:
    fake.plan(command, "lose")
    slurm = fake.commands()
    with pytest.raises(SlurmUnavailableError, match="slurmctld does not answer") as raised:
        slurm.squeue(["1"]) if command == "squeue" else slurm.show_config()
    assert raised.value.missing == "slurmctld"
    assert raised.value.command[0] == command


def test_a_squeue_that_hangs_is_killed(fake: FakeSlurm) -> None:
    fake.plan("squeue", "hang after")
    with pytest.raises(SlurmUnavailableError, match="no answer"):
        fake.commands(timeout_s=0.5).squeue()


def test_the_accounting_that_does_not_answer_is_named(fake: FakeSlurm) -> None:
    fake.plan("sacct", "refuse", words="sacct: error: Problem talking to the database: Connection refused")
    with pytest.raises(SlurmUnavailableError) as raised:
        fake.commands().sacct(["1"])
    assert raised.value.missing == "slurmdbd"


def test_without_slurm_the_missing_command_is_named(tmp_path: Path) -> None:
    slurm = Slurm({"PATH": str(tmp_path)})
    with pytest.raises(SlurmUnavailableError, match="there is no squeue in PATH") as raised:
        slurm.squeue()
    assert raised.value.missing == "squeue"
    assert slurm.rpcs == 0


def test_a_command_that_cannot_be_executed_is_named(tmp_path: Path) -> None:
    (tmp_path / "squeue").write_text("no program")
    (tmp_path / "squeue").chmod(0o755)
    with pytest.raises(SlurmUnavailableError):
        Slurm({"PATH": str(tmp_path)}).squeue()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_site_of_each_version_takes_two_questions(tmp_path: Path, version: str) -> None:
    slurm = FakeSlurm(tmp_path / "slurm", version).commands()
    site = slurm.site()
    assert ".".join(f"{part:02}" for part in site.version).startswith(version)
    assert site.partitions
    assert slurm.rpcs == 2


def test_noise_around_the_id_of_sbatch_does_no_harm(tmp_path: Path, script: Path) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\necho 'Welcome to the cluster; 3 news'\necho '42;ridge'\necho 'warning' >&2\n")
    sbatch.chmod(0o755)
    assert Slurm({"PATH": f"{tmp_path}:{os.environ['PATH']}"}).sbatch(script) == "42"


def test_of_a_surrounding_job_only_the_clusters_address_is_kept() -> None:
    inside = {
        "PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "SLURM_CLUSTERS": "a", "SLURM_JOB_ID": "7", "HOME": "/root",
        "SLURM_MEM_PER_NODE": "100", "SLURM_TIME_FORMAT": "%s", "SQUEUE_FORMAT": "%i", "SCANCEL_STATE": "RUNNING",
        "SACCT_FORMAT": "jobid", "SRUN_CPUS_PER_TASK": "4", "SLURMD_NODENAME": "n1", "SBATCH_ACCOUNT": "mine",
        "CUDA_VISIBLE_DEVICES": "0",
    }  # fmt: skip
    assert clean_environment(inside) == {
        "PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "SLURM_CLUSTERS": "a", "HOME": "/root",
        "SBATCH_ACCOUNT": "mine",
    }  # fmt: skip


def test_outside_of_a_job_the_users_devices_stay() -> None:
    assert clean_environment({"CUDA_VISIBLE_DEVICES": "1"}) == {"CUDA_VISIBLE_DEVICES": "1"}


def test_without_array_waiting_elements_are_one_line(fake: FakeSlurm, script: Path) -> None:
    """As a user's own squeue would print them: the ids are read all the same."""
    from hpcrl.launch.slurm.jobs import SQUEUE_FORMAT, parse_squeue

    slurm = fake.commands()
    slurm.sbatch(script)
    fake.run(100, element=1)
    status, said, _ = slurm._run(["squeue", "--noheader", "--all", f"--format={SQUEUE_FORMAT}"])
    assert status == 0
    assert len(said.splitlines()) == 2
    assert {str(each.id) for each in parse_squeue(said)} == {"100_0", "100_1", "100_2"}

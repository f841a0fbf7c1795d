"""What a submission says that came to no attempt: its reason, its exit code, and advice that helps."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from support.chaos import wait_until
from support.slurm_made import made_on_slurm

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import ControlConfig
from hpcrl.config.experiment import to_dict
from hpcrl.durable.records import KeyPair, Submission, Verdict
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import DataError, ExitCode
from hpcrl.inspect import alive
from hpcrl.inspect.cause_text import cause_lines
from hpcrl.inspect.views.why import newest_cause
from hpcrl.launch import conclusion, entry
from hpcrl.launch.conclusion import conclude
from hpcrl.launch.local import LocalLauncher
from hpcrl.launch.slurm.requeue import Cause, Ended
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.recipes.toy import ToyExperiment
from hpcrl.wire.channel import RunKey


def hpcrl(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hpcrl.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A small run that nobody has started."""
    toy = ToyExperiment(control=ControlConfig(steps=2), cluster=ClusterConfig(type="local", device="cpu"))
    key = RunKey.generate()
    return RunDirectory.create(
        tmp_path / "run",
        experiment=to_dict(toy),
        host=algorithm_of(toy).host,
        key=KeyPair(key.public.decode(), key.secret.decode()),
        inputs={},
    )


@pytest.mark.slow
def test_a_master_that_comes_to_no_attempt_says_why_and_following_its_advice_helps(run: RunDirectory) -> None:
    run.key_json.chmod(0o644)
    ended = hpcrl("resume", str(run.root))
    assert ended.returncode == ExitCode.INTERNAL, ended.stderr
    assert "key.json has owner" in ended.stderr and "chmod 600 it" in ended.stderr
    assert "killed" not in ended.stderr and "When the cause is gone: hpcrl resume" in ended.stderr
    assert run.newest_attempt() is None
    status = json.loads(hpcrl("status", str(run.root), "--json").stdout)
    assert (status["state"], status["exit_code"]) == ("failed", 70) and "chmod 600" in status["why"]
    (line,) = json.loads(hpcrl("list", str(run.root), "--json").stdout)
    assert (line["state"], line["exit_code"]) == ("failed", 70)
    living = lambda: any(LocalLauncher().living(run, each) for each in run.submissions())  # noqa: E731
    assert wait_until(lambda: not living(), 90, "the end of the agent"), "the agent waits for a master"

    run.key_json.chmod(0o600)
    assert hpcrl("resume", str(run.root)).returncode == ExitCode.DONE
    verdict = run.newest_verdict()
    assert verdict is not None and verdict.state == "done"


def test_lost_keys_are_named_by_the_job_and_made_anew_by_resume(run: RunDirectory) -> None:
    run.key_json.unlink()
    launcher = LocalLauncher()
    submission = launcher.start(run, "first")
    assert wait_until(lambda: not launcher.is_alive(run, submission), 60, "the end of the master")
    status = json.loads(hpcrl("status", str(run.root), "--json").stdout)
    assert (status["state"], status["exit_code"]) == ("failed", 70) and "key.json is missing" in status["why"]
    (line,) = json.loads(hpcrl("list", str(run.root), "--json").stdout)
    assert (line["state"], line["why"]) == ("failed", status["why"])
    resumed = hpcrl("resume", str(run.root))
    assert resumed.returncode == ExitCode.DONE, resumed.stderr
    assert "key.json was missing: new keys were made." in resumed.stdout


def test_each_exit_code_of_a_start_reaches_its_verdict(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(error: Exception) -> Verdict:
        def run_master(*_: object) -> int:
            raise error

        monkeypatch.setattr("hpcrl.master.master.run_master", run_master)
        nonce = type(error).__name__
        code = entry.main("master", str(run.root), nonce, 0, 1)
        verdict = run.verdict_of(nonce)
        assert verdict is not None and verdict.exit_code == code
        return verdict

    assert raising(DataError("rows [/x]\x1b", "Set data.train.")).exit_code == ExitCode.DATA
    assert raising(OSError(30, "Read-only file system", "x")).exit_code == ExitCode.INTERNAL
    broken = raising(ZeroDivisionError("by zero"))
    assert broken.exit_code == ExitCode.INTERNAL and "raise error" in (broken.traceback or "")


def test_what_is_said_at_the_end_is_what_why_says(run: RunDirectory) -> None:
    number = run.claim_attempt("n")
    verdict = Verdict(number, "failed", int(ExitCode.USER_CODE), "no label", "worker-0", "gen", "Traceback\n  x", 1.5)
    run.publish_verdict(number, verdict)
    cause, said = newest_cause(run), conclusion.describe(run, verdict)
    assert cause is not None and "\n".join(cause_lines(cause)) in said
    assert "no label" in said and "hpcrl resume" in said and "Traceback" not in said


def test_what_a_master_printed_is_shown_in_the_place_of_a_verdict(
    run: RunDirectory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    submission = Submission("n", {"master": 41}, 0, 0.0)
    assert conclude(run, submission) == ExitCode.REQUEUE
    assert "(killed?)" in capsys.readouterr().err
    folder = run.submitit_folder("n")
    folder.mkdir()
    (folder / "41_0_log.err").write_text("MemoryError: [/x]\x1b[2J\n")
    assert conclude(run, submission) == ExitCode.INTERNAL
    said = capsys.readouterr().err
    assert "MemoryError: [/x]\\x1b[2J" in said and "killed" not in said

    disk = os.statvfs(run.root)
    for flag, bavail, word in ((os.ST_RDONLY, disk.f_bavail, "read-only"), (0, 0, "full")):
        fake = os.statvfs_result((*disk[:4], bavail, *disk[5:8], flag, disk[9]))
        monkeypatch.setattr(alive.os, "statvfs", lambda _, fake=fake: fake)
        assert conclude(run, submission) == ExitCode.INTERNAL
        said = capsys.readouterr().err
        assert f"its disk is {word}" in said and "killed" not in said


def test_a_job_that_ended_before_the_run_began_is_concluded_with_what_it_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = made_on_slurm(tmp_path / "on_slurm").run
    (submission,) = made.submissions()
    folder = made.submitit_folder(submission.nonce)
    (folder / "exits").mkdir(parents=True)
    (folder / "exits" / "master.123.0.json").write_bytes(msgspec.json.encode(Ended(Cause.USER_ERROR, 64, 5.0)))
    (folder / "master-123.out").write_text("there is no apptainer on n1\n")
    assert conclude(made, submission) == ExitCode.CONFIGURATION
    said = capsys.readouterr().err
    assert "there is no apptainer on n1" in said and "cause    configuration" in said and "killed" not in said

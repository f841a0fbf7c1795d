"""A run executes its copy of the user's code, whatever becomes of the files, until somebody accepts the change."""

import os
import signal
import stat
from pathlib import Path

import pytest
from support.chaos import Remains, outputs, remains, started_twice, wait_until, workers_of
from support.cluster import alive_of
from support.judged_run import SCORE, SPOILT, closed_steps, hpcrl, submitted, written

from hpcrl.durable.history import accepted_inputs, read_history
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode


def begun(folder: Path) -> RunDirectory:
    """A run after two steps whose reward waits, and the files of the reward as somebody spoilt them."""
    run = submitted(folder)
    for name, text in SPOILT.items():
        (folder / name).write_text(text)
    (folder / "score.py").unlink()
    return run


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    folder = written(tmp_path_factory.mktemp("plain"))
    done = hpcrl(folder, "submit", "ppo.yaml", "--run-dir", "run")
    assert done.returncode == ExitCode.DONE, done.stdout + done.stderr
    run = RunDirectory.open(folder / "run")
    for path in (run.code, *run.code.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    return run


@pytest.fixture(scope="module")
def undisturbed(plain: RunDirectory) -> Remains:
    return remains(plain)


def test_a_reward_that_is_edited_under_a_run_changes_nothing_when_a_worker_is_killed(
    tmp_path: Path, undisturbed: Remains
) -> None:
    run = begun(written(tmp_path))
    os.kill(workers_of(run)[0], signal.SIGKILL)
    (tmp_path / "hold").unlink()
    wait_until(lambda: run.verdict_of(run.submissions()[-1].nonce), 120, "the verdict")
    assert len(run.numbers()) == 2, outputs(run)
    assert remains(run) == undisturbed
    assert started_twice(run) == []
    wait_until(lambda: alive_of(run.root) == [], 90, "the end of all processes")


@pytest.mark.slow
def test_resume_keeps_the_copy_says_so_and_takes_the_change_over_when_it_is_accepted(
    tmp_path: Path, undisturbed: Remains
) -> None:
    run = begun(written(tmp_path))
    assert hpcrl(tmp_path, "stop", "run", "--now").returncode == ExitCode.DONE
    (tmp_path / "hold").unlink()
    dry = hpcrl(tmp_path, "resume", "run", "--dry-run")
    assert dry.returncode == ExitCode.DONE, dry.stderr
    for words in ("score.py", "late.py", "factor.py", "-changed reward.function", "-changed code.files"):
        assert words in dry.stdout
    refused = hpcrl(tmp_path, "resume", "run", "--accept-changed", "reward.function")
    assert refused.returncode == ExitCode.CONFIGURATION and "score.py cannot be read" in refused.stderr
    (tmp_path / "score.py").write_text(SCORE.replace("WEIGHT *", "'x' +"))
    for words in ((), ("--dry-run",)):
        failed = hpcrl(tmp_path, "resume", "run", "--accept-changed", "reward.function", *words)
        assert failed.returncode == ExitCode.USER_CODE and "a trial on the first rows" in failed.stderr
    (tmp_path / "score.py").write_text(SCORE)
    before = closed_steps(run)
    done = hpcrl(tmp_path, "resume", "run", "--accept-changed", "reward.function")
    assert done.returncode == ExitCode.DONE, done.stdout + done.stderr
    assert f"{tmp_path}/weights/one.txt changed since the run copied it" in done.stdout
    assert accepted_inputs(read_history(run)) == {"reward.function": "code/001"}
    rows = remains(run).metrics
    assert rows[:before] == undisturbed.metrics[:before] and rows[-1]["rew_inf/reward"] > 900 - 70 * 6
    copy = Path(f"{run.code_copy(1)}{tmp_path}")
    assert (copy / "weights/one.txt").read_text() == "1.0"
    assert (copy / "parts/factor.py").read_text() == "FACTOR = 70.0\n"


@pytest.mark.slow
def test_a_reward_that_a_run_cannot_have_is_one_for_a_fork_of_it(plain: RunDirectory, undisturbed: Remains) -> None:
    folder = plain.root.parent
    (folder / "other.py").write_text("def score(prompt, response, row):\n    return 7.0\n")
    words = ("--reward.function", "other.py:score", "--generation.temperature", "0.5")
    refused = hpcrl(folder, "resume", "run", "--control.steps", "8", *words)
    assert refused.returncode == ExitCode.CONFIGURATION
    for key, value in zip(words[::2], words[1::2], strict=True):
        assert f"`hpcrl fork RUN --step N {key} {value}`" in refused.stderr
    (folder / "wrong.py").write_text("def score(prompt, response, row):\n    return 'none'\n")
    tried = hpcrl(folder, "fork", "run", "--step", "4", "--reward.function", "wrong.py:score", "--dry-run")
    assert tried.returncode == ExitCode.USER_CODE and "returned 'none'" in tried.stderr

    done = hpcrl(folder, "fork", "run", "--step", "4", "--run-dir", "forked", "--name", "forked", *words)
    assert done.returncode == ExitCode.DONE, done.stdout + done.stderr
    fork = RunDirectory.open(folder / "forked")
    rows = remains(fork).metrics
    assert rows[:4] == undisturbed.metrics[:4] and [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["rew_inf/reward"] for row in rows[4:]] == [7.0, 7.0]
    assert sorted(path.name for path in fork.code.rglob("*.py")) == ["other.py"]
    assert fork.configuration()["generation"]["temperature"] == 0.5
    assert remains(plain) == undisturbed

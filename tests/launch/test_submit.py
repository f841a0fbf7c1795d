"""A run from the command line to its end, through submitit: interrupted, killed, stopped, refused and resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.chaos import held, process_of, remains, rows_of, wait_until
from support.cluster import alive_of

from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Closed, Opened
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.launch.local import LocalLauncher

STEPS = 6
TOY = f"""
algorithm: toy
control: {{steps: {STEPS}, checkpoint: {{steps: 2}}, evaluate: {{steps: 3}}}}
cluster: {{device: cpu, heartbeat_s: 0.2, lost_after_s: 60, orphan_timeout_s: 3}}
"""
DELAY_S = 0.2


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "hpcrl.cli.main", *words]


def hpcrl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=120)


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "toy.yaml").write_text(TOY)
    return str(tmp_path / "toy.yaml")


def submitted(config: str, root: Path, *words: str) -> RunDirectory:
    """A detached run that has begun."""
    slow = ("--toy.delay_s", str(DELAY_S))
    done = hpcrl("submit", config, "--run-dir", str(root), "--detach", *slow, *words)
    assert done.returncode == ExitCode.DONE, done.stderr
    run = RunDirectory.open(root)
    wait_until(lambda: closed_steps(run) >= 1, 60, "the first step")
    return run


def closed_steps(run: RunDirectory) -> int:
    events = [row for attempt in run.numbers() for row in rows_of(run.events(attempt))]
    return sum(row["event"] == "closed" for row in events)


def orders_of(run: RunDirectory) -> int:
    return len(list(run.control.glob("*.json")))


def gone(run: RunDirectory) -> Callable[[], bool]:
    return lambda: not any(LocalLauncher().living(run, submission) for submission in run.submissions())


def resumed_to_the_end(run: RunDirectory) -> None:
    done = hpcrl("resume", str(run.root))
    assert done.returncode == ExitCode.DONE, done.stdout + done.stderr
    assert wait_until(gone(run), 60, "the end of all jobs")
    assert alive_of(run.root) == []


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("plain")
    (folder / "toy.yaml").write_text(TOY)
    done = hpcrl("submit", str(folder / "toy.yaml"), "--run-dir", str(folder / "run"))
    assert done.returncode == ExitCode.DONE, done.stdout + done.stderr
    return remains(RunDirectory.open(folder / "run"))


@pytest.mark.slow
def test_a_detached_run_goes_on_without_its_terminal(tmp_path: Path, config: str, undisturbed) -> None:
    run = submitted(config, tmp_path / "run")
    with held(run):
        status = json.loads(hpcrl("status", str(run.root), "--json").stdout)
    assert status["state"] == "running" and len(status["workers"]) == 2
    assert wait_until(gone(run), 60, "the end")
    assert remains(run) == undisturbed


@pytest.mark.parametrize("victim", [pytest.param("master", marks=pytest.mark.slow), "agent-0"])
def test_a_job_killed_from_outside_ends_the_run_and_resume_ends_it_with_the_same_bits(
    tmp_path: Path, config: str, undisturbed, victim: str
) -> None:
    run = submitted(config, tmp_path / "run", "--cluster.lost_after_s", "3")
    with held(run):
        os.kill(process_of(run, victim), signal.SIGKILL)
    started = time.monotonic()
    dry = hpcrl("resume", str(run.root), "--dry-run")
    # As of `resume`: the master may not have noticed yet that it lost its only node.
    assert dry.returncode in (ExitCode.DONE, ExitCode.CONFIGURATION) and "step" in dry.stdout
    resume = hpcrl("resume", str(run.root))
    while resume.returncode == ExitCode.CONFIGURATION and time.monotonic() - started < 60:
        assert "is running" in resume.stderr  # the master has not yet noticed that it lost its only node
        time.sleep(0.3)
        resume = hpcrl("resume", str(run.root))
    assert resume.returncode == ExitCode.DONE, resume.stdout + resume.stderr
    assert remains(run) == undisturbed
    wait_until(gone(run), 60, "the end of all jobs")
    assert alive_of(run.root) == []


@pytest.mark.parametrize(
    ("interrupts", "order"),
    [*(pytest.param(*it, marks=pytest.mark.slow) for it in [(1, "finish"), (2, "drain")]), (3, "stop")],
)
def test_each_ctrl_c_ends_the_run_more_urgently_and_says_what_the_next_does(
    tmp_path: Path, config: str, undisturbed, interrupts: int, order: str
) -> None:
    root = tmp_path / "run"
    words = command("submit", config, "--run-dir", str(root), "--toy.delay_s", str(DELAY_S))
    shown = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    run = RunDirectory(root)
    wait_until(lambda: root.exists() and run.numbers() and closed_steps(run) >= 1, 60, "the first step")
    with held(run):
        for number in range(interrupts):
            os.killpg(shown.pid, signal.SIGINT)
            wait_until(lambda n=number: orders_of(run) > n, 60, "the order")
    out, err = shown.communicate(timeout=60)
    assert shown.returncode == ExitCode.NEVER_REQUEUE, out + err
    assert f"hpcrl resume {root}" in err and "Ctrl-C again" in out
    orders = [json.loads(path.read_text())["command"] for path in run.control.glob("*.json")]
    assert order in orders
    wait_until(gone(run), 60, "the end of all jobs")
    resumed_to_the_end(run)
    assert remains(run) == undisturbed


@pytest.mark.slow
def test_stop_finishes_the_open_steps_of_a_run_from_another_process(tmp_path: Path, config: str, undisturbed) -> None:
    run = submitted(config, tmp_path / "run")
    with held(run):
        stop = subprocess.Popen(command("stop", str(run.root)), stdout=subprocess.PIPE, text=True)
        wait_until(lambda: orders_of(run), 60, "the order")
    said, _ = stop.communicate(timeout=60)
    assert stop.returncode == ExitCode.DONE and f"hpcrl resume {run.root}" in said
    assert "finishing the open steps" in said
    lines = [line.event for line in read_history(run).lines]
    assert [line.step for line in lines if isinstance(line, Opened)] == [
        line.step for line in lines if isinstance(line, Closed)
    ]
    assert gone(run)()
    resumed_to_the_end(run)
    assert remains(run) == undisturbed


def test_a_running_run_is_not_resumed_a_second_time(tmp_path: Path, config: str) -> None:
    run, link = submitted(config, tmp_path / "run"), tmp_path / "link"
    link.symlink_to(run.root)
    with held(run):
        for path in (run.root, link):
            refused = hpcrl("resume", str(path))
            assert refused.returncode == ExitCode.CONFIGURATION and "is running" in refused.stderr
    assert run.numbers() == [0]
    assert "hpcrl resume" in hpcrl("stop", str(link), "--now").stdout
    wait_until(gone(run), 60, "the end of all jobs")


def test_nothing_is_made_for_a_configuration_with_problems(tmp_path: Path, config: str) -> None:
    words = ("--cluster.nodse", "2", "--toy.width", "-1")
    refused = hpcrl("submit", config, "--run-dir", str(tmp_path / "run"), *words)
    assert refused.returncode == ExitCode.CONFIGURATION
    assert "nodse" in refused.stderr and "toy.width" in refused.stderr
    assert not (tmp_path / "run").exists()

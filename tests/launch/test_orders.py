"""A run that is paused and let go on, from other processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.chaos import begin, create_run, rows_of, toy_experiment, wait_until
from support.made_parts import made_in
from support.made_run import MadeRun
from support.slurm_made import made_on_slurm, seen

import hpcrl.launch.slurm.queue as asking
from hpcrl.cli.main import main
from hpcrl.durable.records import Answer, Command
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode, InternalError
from hpcrl.inspect.queue import Queue
from hpcrl.inspect.views.status import read_status
from hpcrl.launch.orders import give_command

TOY = """
algorithm: toy
name: held
control: {steps: 500, checkpoint: {steps: 2}}
toy: {delay_s: 0.1}
cluster: {type: local, device: cpu, heartbeat_s: 0.2, lost_after_s: 60, orphan_timeout_s: 3}
"""


def hpcrl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "hpcrl.cli.main", *words], capture_output=True, text=True, timeout=120)


def count(run: RunDirectory, event: str) -> int:
    return sum(row["event"] == event for number in run.numbers() for row in rows_of(run.events(number)))


def is_quiet(run: RunDirectory, seconds: float, attempt: int = 0) -> bool:
    """No step closes for so long; while the run goes on, two do each second."""
    before = run.metrics(attempt).read_bytes()
    time.sleep(seconds)
    return run.metrics(attempt).read_bytes() == before


@pytest.mark.slow
def test_a_paused_run_stays_paused_after_a_loss_and_goes_on_when_it_is_told_to(tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_text(TOY)
    root = tmp_path / "held-by-name"
    done = hpcrl("submit", str(tmp_path / "toy.yaml"), "--run-dir", str(root), "--detach")
    assert done.returncode == ExitCode.DONE, done.stderr
    run = RunDirectory.open(root)
    wait_until(lambda: count(run, "closed") >= 2, 60, "the second step")

    paused = hpcrl("pause", "held-by-name")
    assert "is paused: calls in flight are finished" in paused.stdout, paused.stderr
    assert read_status(root).state == "paused"
    closed = count(run, "closed")
    assert "is paused already" in hpcrl("pause", str(root)).stdout

    (pid,) = [row["pid"] for row in rows_of(run.events(0)) if row["event"] == "worker" and row["rank"] == 1]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: read_status(root).attempt == 1 and read_status(root).state == "paused", 60, "attempt 1, paused")
    assert is_quiet(run, 0.5, attempt=1)
    went_on = hpcrl("continue", str(root))
    assert went_on.stdout.strip() == f"{root} continues."
    wait_until(lambda: count(run, "closed") > closed + 2, 60, "steps after the pause")
    first, *rows = rows_of(run.events(1))
    (began,) = [row["mono"] - first["mono"] for row in rows if row.get("command") == "continue"]
    assert min(it.span.sent_s for it in made_in(run, 1)) > began - 0.01
    assert hpcrl("stop", str(root)).returncode == ExitCode.DONE
    for command in ("pause", "continue"):
        over = hpcrl(command, str(root))
        assert over.returncode == ExitCode.DONE and over.stdout.startswith(f"nothing of {root} is running; ")
    assert json.loads(hpcrl("status", str(root), "--json").stdout)["slurm"] is None


@pytest.mark.slow
def test_a_run_whose_events_are_lost_is_paused_and_goes_on_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_text(TOY)
    root = tmp_path / "run"
    words = ["--run-dir", str(root), "--detach"]
    assert hpcrl("submit", str(tmp_path / "toy.yaml"), *words).returncode == ExitCode.DONE
    run = RunDirectory.open(root)
    wait_until(lambda: count(run, "closed") >= 1, 60, "the first step")
    run.events(0).unlink()
    assert "is paused: calls in flight are finished" in hpcrl("pause", str(root)).stdout
    assert "is paused already" in hpcrl("pause", str(root)).stdout
    wait_until(lambda: is_quiet(run, 2.0), 60, "the end of the calls in flight, and no others")
    assert hpcrl("continue", str(root)).stdout.strip() == f"{root} continues."
    assert "is not paused" in hpcrl("continue", str(root)).stdout
    stopped = hpcrl("stop", str(root))
    assert stopped.returncode == ExitCode.DONE, stopped.stderr
    answers = [run.read_answer(path.stem) for path in sorted(run.control.glob("*.json"))]
    assert [answer and (answer.done, answer.state, answer.attempt) for answer in answers] == [
        ("obeyed", "paused", 0),
        ("unchanged", "paused", 0),
        ("obeyed", "running", 0),
        ("unchanged", "running", 0),
        ("obeyed", "finishing", 0),
    ]
    assert not run.events(0).exists()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer("obeyed", "running", 0, 1.0), "continues."),
        (Answer("unchanged", "running", 0, 1.0), "is not paused."),
        (Answer("unchanged", "draining", 0, 1.0), "is ending already: somebody has stopped it."),
        (Answer("refused", "running", 0, 1.0, "no such thing"), "refused"),
    ],
)
def test_what_the_master_answered_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, answer: Answer, said: str
) -> None:
    made = on_slurm(tmp_path, monkeypatch, Queue((seen("master", "running"),)))
    publish = RunDirectory.publish_command

    def publish_and_answer(run: RunDirectory, command: Command) -> str:
        name = publish(run, command)
        run.publish_answer(name, answer)
        return name

    monkeypatch.setattr(RunDirectory, "publish_command", publish_and_answer)
    if answer.done == "refused":
        with pytest.raises(InternalError, match=r"refused .*/control/.*\.json: no such thing"):
            give_command(made.run.root, "continue")
        return
    assert give_command(made.run.root, "continue") == ExitCode.DONE
    assert capsys.readouterr().out == f"{made.run.root} {said}\n"


def test_an_answer_that_came_before_the_end_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    made = on_slurm(tmp_path, monkeypatch, Queue((seen("master", "running"),)))
    publish = RunDirectory.publish_command

    def publish_and_end(run: RunDirectory, command: Command) -> str:
        name = publish(run, command)
        if command.command == "pause":
            run.publish_answer(name, Answer("obeyed", "paused", 0, 1.0))
        made.verdict("done", 0, "x")
        return name

    monkeypatch.setattr(RunDirectory, "publish_command", publish_and_end)
    assert give_command(made.run.root, "pause") == ExitCode.DONE
    assert "is paused" in capsys.readouterr().out
    made.run.verdict(0).unlink()
    with pytest.raises(InternalError, match=r"ended before it obeyed\. `hpcrl status .*` says how\."):
        give_command(made.run.root, "continue")
    assert main(["status", str(made.run.root)]) == ExitCode.DONE
    assert "done" in capsys.readouterr().out


def on_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue: Queue) -> MadeRun:
    made = made_on_slurm(tmp_path / "run")
    made.begin()
    monkeypatch.setattr(asking, "look", lambda runs: [queue])
    return made


def test_a_master_that_waits_for_slurm_gets_the_command_for_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    made = on_slurm(tmp_path, monkeypatch, Queue((seen("master", "pending", reason="Resources"),)))
    assert give_command(made.run.root, "pause") == ExitCode.DONE
    assert "pending (Resources). It will obey when it begins" in capsys.readouterr().out
    (given,) = made.run.control.iterdir()
    assert json.loads(given.read_text()) == {"command": "pause", "submission": "submission"}


def test_a_command_without_an_answer_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    made = on_slurm(tmp_path, monkeypatch, Queue((seen("master", "running"),)))
    with pytest.raises(InternalError, match=r"has not answered within 0\.3 s.*`hpcrl status .*` shows what it does\."):
        give_command(made.run.root, "pause", deadline_s=0.3)
    assert main(["status", str(made.run.root)]) == ExitCode.DONE
    assert "running" in capsys.readouterr().out
    made.verdict("preempted", 75, "x")
    with pytest.raises(InternalError, match="has not answered"):
        give_command(made.run.root, "pause", deadline_s=0.3)


@pytest.mark.parametrize(("state", "code", "said"), [("done", 0, "is done: x."), ("stopped", 93, "hpcrl resume")])
def test_without_squeue_the_directory_says_whether_somebody_may_obey(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, state: str, code: int, said: str
) -> None:
    made = on_slurm(tmp_path, monkeypatch, Queue(missing="there is no squeue in PATH"))
    with pytest.raises(InternalError, match="has not answered"):
        give_command(made.run.root, "pause", deadline_s=0.1)
    made.verdict(state, code, "x")
    assert give_command(made.run.root, "pause") == ExitCode.DONE
    assert said in capsys.readouterr().out


def test_an_attempt_says_whether_it_begins_paused(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", toy_experiment())
    run.publish_command(Command("pause", "first"))
    jobs = begin(run, "first")
    wait_until(lambda: run.numbers() and read_status(run.root).state == "paused", 60, "the pause")
    run.publish_command(Command("continue", "first"))
    assert jobs.wait_for("master", 60) == 0

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
from support.made_run import MadeRun
from support.slurm_made import made_on_slurm, seen

import hpcrl.launch.slurm.queue as asking
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode, InternalError
from hpcrl.events import CommandHeard
from hpcrl.inspect.queue import Queue
from hpcrl.inspect.status import read_status
from hpcrl.launch.orders import CommandWatch, order
from hpcrl.master.control import Command, give_command

TOY = """
algorithm: toy
name: held
control: {steps: 8, checkpoint: {steps: 2}}
toy: {delay_s: 0.1}
cluster: {type: local, device: cpu, heartbeat_s: 0.2, lost_after_s: 3, orphan_timeout_s: 3}
"""


def hpcrl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "hpcrl.cli.main", *words], capture_output=True, text=True, timeout=120)


def closed(run: RunDirectory) -> int:
    return sum(row["event"] == "closed" for number in run.numbers() for row in rows_of(run.events(number)))


def test_a_paused_run_stays_paused_after_a_loss_and_goes_on_when_it_is_told_to(tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_text(TOY)
    root = tmp_path / "held-by-name"
    done = hpcrl("submit", str(tmp_path / "toy.yaml"), "--run-dir", str(root), "--detach")
    assert done.returncode == ExitCode.DONE, done.stderr
    run = RunDirectory.open(root)
    wait_until(lambda: closed(run) >= 2, 60, "the second step")

    paused = hpcrl("pause", "held-by-name")
    assert "is paused: calls in flight are finished" in paused.stdout, paused.stderr
    assert read_status(root).state == "paused"
    assert "is paused already" in hpcrl("pause", str(root)).stdout
    time.sleep(1.0)
    before = closed(run)

    (pid,) = [row["pid"] for row in rows_of(run.events(0)) if row["event"] == "worker" and row["rank"] == 1]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: read_status(root).attempt == 1 and read_status(root).state == "paused", 30, "attempt 1, paused")
    time.sleep(0.5)
    assert closed(run) == before

    went_on = hpcrl("continue", str(root))
    assert went_on.stdout.strip() == f"{root} continues."
    wait_until(lambda: read_status(root).state == "done", 60, "the end")
    for command in ("pause", "continue"):
        over = hpcrl(command, str(root))
        assert over.returncode == ExitCode.DONE and "nothing of" in over.stdout
    assert json.loads(hpcrl("status", str(root), "--json").stdout)["slurm"] is None


def test_a_run_that_is_not_paused_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    made = on_slurm(tmp_path, monkeypatch, Queue((seen("master", "running"),)))
    assert order(made.run.root, "continue") == ExitCode.DONE
    assert "is not paused" in capsys.readouterr().out
    assert list(made.run.control.iterdir()) == []


def on_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue: Queue) -> MadeRun:
    made = made_on_slurm(tmp_path / "run")
    made.begin()
    monkeypatch.setattr(asking, "look", lambda runs: [queue])
    return made


def test_a_master_that_waits_for_slurm_gets_the_order_for_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    made = on_slurm(tmp_path, monkeypatch, Queue((seen("master", "pending", reason="Resources"),)))
    assert order(made.run.root, "pause") == ExitCode.DONE
    assert "pending (Resources). It will obey when it begins" in capsys.readouterr().out
    (given,) = made.run.control.iterdir()
    assert json.loads(given.read_text()) == {"command": "pause", "submission": "submission"}


def test_an_order_that_nobody_obeys_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = on_slurm(tmp_path, monkeypatch, Queue((seen("master", "running"),)))
    with pytest.raises(InternalError, match=r"has not obeyed within 0\.3 s"):
        order(made.run.root, "pause", deadline_s=0.3)
    made.verdict("preempted", 75, "x")
    with pytest.raises(InternalError, match="has not obeyed"):
        order(made.run.root, "pause", deadline_s=0.3)


def test_without_squeue_the_directory_says_whether_somebody_may_obey(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    made = on_slurm(tmp_path, monkeypatch, Queue(missing="there is no squeue in PATH"))
    with pytest.raises(InternalError, match="has not obeyed"):
        order(made.run.root, "pause", deadline_s=0.1)
    made.verdict("done", 0, "x")
    assert order(made.run.root, "pause") == ExitCode.DONE
    assert "nothing of" in capsys.readouterr().out


def test_a_witness_believes_the_order_or_a_new_attempt_that_begins_so(tmp_path: Path) -> None:
    made = made_on_slurm(tmp_path / "run")
    made.begin()
    witness = CommandWatch(made.run, "submission", "pause")
    assert not witness.has_seen("mine")
    made.write(CommandHeard("pause", "other"))
    assert not witness.has_seen("mine")
    made.write(CommandHeard("pause", "mine"))
    assert witness.has_seen("mine")
    witness = CommandWatch(made.run, "submission", "continue")
    made.begin()
    assert witness.has_seen("never noted")


def test_an_attempt_says_whether_it_begins_paused(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", toy_experiment())
    give_command(run, Command("pause", "first"))
    jobs = begin(run, "first")
    wait_until(lambda: run.numbers() and read_status(run.root).state == "paused", 20, "the pause")
    give_command(run, Command("continue", "first"))
    assert jobs.wait_for("master", 20) == 0

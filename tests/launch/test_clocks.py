"""Wall clocks that are an hour apart: what came last is counted, and no clock is asked for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.chaos import rows_of, wait_until
from support.made_run import MadeRun

from hpcrl.durable.records import Command
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.inspect.reader import merged_metrics
from hpcrl.inspect.views.status import read_status
from hpcrl.launch.local import LocalLauncher
from hpcrl.master.control import Control

CLOCKS = Path(__file__).parents[1] / "support" / "shifted_clock"
AHEAD, BEHIND = 3600, -3600


def hpcrl(*words: str, client: int, master: int, agent: int) -> subprocess.CompletedProcess[str]:
    shifts = json.dumps({"client": client, "master": master, "agent": agent})
    path = f"{CLOCKS}:{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "hpcrl.cli.main", *words]
    environ = os.environ | {"PYTHONPATH": path, "HPCRL_CLOCKS": shifts}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ)


@pytest.mark.slow
def test_a_run_whose_processes_have_clocks_an_hour_apart_does_as_it_is_told(tmp_path: Path) -> None:
    """It is paused, moved, resumed, extended and forked, each by processes that are ahead of those before or behind."""
    root = str(tmp_path / "run")
    (tmp_path / "toy.yaml").write_text(
        "algorithm: toy\ncontrol: {steps: 100, checkpoint: {steps: 2}}\ntoy: {delay_s: 0.1}\n"
        "cluster: {device: cpu, workers_per_node: 2, heartbeat_s: 0.2, lost_after_s: 30, orphan_timeout_s: 10}\n"
    )
    begun = hpcrl(
        "submit", str(tmp_path / "toy.yaml"), "--run-dir", root, "--detach", client=AHEAD, master=0, agent=BEHIND
    )
    assert begun.returncode == ExitCode.DONE, begun.stderr
    run = RunDirectory.open(Path(root))

    def closed() -> int:
        return sum(row["event"] == "closed" for number in run.numbers() for row in rows_of(run.events(number)))

    assert wait_until(lambda: closed() >= 2, 60, "the second step")
    assert "pause" in hpcrl("pause", root, client=AHEAD, master=0, agent=0).stdout
    assert "continues" in hpcrl("continue", root, client=BEHIND, master=0, agent=0).stdout
    before = closed()
    assert wait_until(lambda: closed() > before, 60, "a step after the pause")
    assert hpcrl("stop", root, "--now", client=BEHIND, master=0, agent=0).returncode == ExitCode.DONE

    one = ("--cluster.workers_per_node", "1")
    moved = hpcrl("resume", root, "--detach", *one, client=BEHIND, master=AHEAD, agent=0)
    assert moved.returncode == ExitCode.DONE, moved.stderr
    first, second = run.submissions()
    assert first.time > second.time + 3600 and run.newest_nonce() == second.nonce
    assert hpcrl("stop", root, "--now", client=0, master=0, agent=0).returncode == ExitCode.DONE
    assert run.configuration()["cluster"]["workers_per_node"] == 1, "where it runs was forgotten"

    ended = hpcrl("resume", root, "--toy.delay_s", "0", client=0, master=BEHIND, agent=AHEAD)
    assert ended.returncode == ExitCode.DONE, ended.stdout + ended.stderr
    verdict = run.newest_verdict()
    assert verdict is not None and verdict.state == "done"
    assert run.configuration()["cluster"]["workers_per_node"] == 1

    longer = ("--control.steps", "103")
    extended = hpcrl("resume", root, *longer, client=BEHIND, master=AHEAD, agent=BEHIND)
    assert extended.returncode == ExitCode.DONE, extended.stdout + extended.stderr
    status = read_status(run.root)
    assert (status.state, status.step, status.steps) == ("done", 103, 103)

    place = str(tmp_path / "fork")
    forked = hpcrl("fork", root, "--step", "102", "--run-dir", place, client=AHEAD, master=BEHIND, agent=0)
    assert forked.returncode == ExitCode.DONE, forked.stdout + forked.stderr
    rows, fork = merged_metrics(run), RunDirectory.open(Path(place))
    assert [row["step"] for row in rows] == list(range(1, 104))
    assert merged_metrics(fork)[-1] | {"settings": None} == rows[-1] | {"settings": None}
    all_sent = [(each, submission) for each in (run, fork) for submission in each.submissions()]
    assert wait_until(lambda: not any(LocalLauncher().living(*each) for each in all_sent), 60, "the end")


def test_commands_are_obeyed_in_the_order_in_which_they_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a master reads them that was queued again: all at once."""
    run = MadeRun(tmp_path / "run").run
    for word, shift_s in (("pause", AHEAD), ("continue", BEHIND)):
        monkeypatch.setattr("time.time_ns", lambda shift_s=shift_s: 10**18 + shift_s * 10**9)
        run.publish_command(Command(word, "s"))  # type: ignore[arg-type]
    control = Control(run, "s")
    control.poll(0, lambda event: None)
    assert not control.paused

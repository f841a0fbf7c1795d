import io
import math
from pathlib import Path

import pytest
from rich.console import Console
from support.made_run import BEGAN, MadeRun, ppo_experiment

from hpcrl.cli import mirror, top
from hpcrl.cli.main import main
from hpcrl.config.cluster import ClusterConfig
from hpcrl.durable.fork import FORK
from hpcrl.durable.journal import Forked, encode_line
from hpcrl.durable.records import Verdict
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.events import AttemptEnded, CallStalled, CallWentOn, WorkersReady
from hpcrl.inspect.progress import Progress, sparkline
from hpcrl.inspect.queue import JobSeen, Queue
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.terminal import show
from hpcrl.inspect.views.status import read_status
from hpcrl.inspect.views.summary import summary
from hpcrl.launch import queues


class Clock:
    def __init__(self) -> None:
        self.now = BEGAN

    def __call__(self) -> float:
        return self.now


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=110, highlight=False, color_system=None)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_without_a_terminal_there_is_a_line_now_and_then_and_one_at_the_end(tmp_path: Path) -> None:
    made, clock, out = MadeRun(tmp_path / "run"), Clock(), console(terminal=False)
    with Progress(made.run, ppo_experiment(), out, clock) as progress:
        progress.update()
        made.begin()
        made.steps(0, 20)
        clock.now += 5
        for _ in range(10):
            progress.update()
        made.steps(21, 30)
        progress.update()
    lines = shown(out).splitlines()
    assert len(lines) == 3
    assert lines[0].endswith("waiting for the workers")
    assert "step 20/60  reward: 0.679  held-out share with reward ≥ 1: 0.716  KL: 0.0126" in lines[1]
    assert "400 tokens/s  ETA 20 s" in lines[1]
    assert "step 30/60" in lines[2]
    assert "\x1b" not in shown(out)


def test_nothing_new_prints_nothing(tmp_path: Path) -> None:
    made, clock, out = MadeRun(tmp_path / "run"), Clock(), console(terminal=False)
    with Progress(made.run, ppo_experiment(), out, clock) as progress:
        for _ in range(10):
            clock.now += 10
            progress.update()
    assert len(shown(out).splitlines()) == 1


def test_a_new_attempt_says_why_the_last_one_ended_and_where_it_goes_on(tmp_path: Path) -> None:
    made, clock, out = MadeRun(tmp_path / "run"), Clock(), console(terminal=False)
    with Progress(made.run, ppo_experiment(), out, clock) as progress:
        made.begin()
        progress.update()
        made.write(AttemptEnded("lost", "worker-1: killed by SIGKILL"))
        made.begin()
        progress.update()
        progress.update()
    text = shown(out)
    assert text.count("attempt 0 ended, node failure: worker-1: killed by SIGKILL\n") == 1
    assert text.count("attempt 1 starts from the checkpoint of step 10; replays 10 train steps\n") == 1


def test_attempts_of_before_are_not_told_again(tmp_path: Path) -> None:
    made, out = MadeRun(tmp_path / "run"), console(terminal=True)
    for _ in range(3):
        made.begin()
    with Progress(made.run, ppo_experiment(), out, Clock()) as progress:
        made.begin()
        progress.update()
    assert "attempt 0 ended" not in shown(out)
    assert "attempt 1 ended" not in shown(out)
    assert "attempt 2 ended, killed" in shown(out)


def test_where_a_fork_comes_from_is_no_attempt_that_ended(tmp_path: Path) -> None:
    made, out = MadeRun(tmp_path / "run"), console(terminal=False)
    made.run.claim_attempt(FORK)
    made.run.journal(0).write_bytes(encode_line(Forked("/runs/other", 4, 0)))
    with Progress(made.run, ppo_experiment(), out, Clock()) as progress:
        made.begin()
        progress.update()
    assert "attempt 0 ended" not in shown(out) and "attempt 1 starts from" in shown(out)


def test_a_terminal_shows_steps_figures_courses_and_workers(tmp_path: Path) -> None:
    made, out = MadeRun(tmp_path / "run"), console(terminal=True)
    made.begin()
    made.steps(0, 43)
    made.send(44, "actor_gen", 1, [1])
    with Progress(made.run, ppo_experiment(), out, Clock()) as progress:
        progress.note("finishing the calls in flight")
        progress.update()
    text = shown(out)
    last = text[text.rindex("╭") :]
    assert "run · attempt 0 · running" in last
    assert "step 43/60" in last
    assert "0.329 → 0.830" in " ".join(last.split())
    assert "(step 40)" in last
    assert "▁" in last
    assert "worker-0  idle" in last
    assert "worker-1  actor_gen, step 44" in last
    assert "finishing the calls in flight" in last


def test_of_many_workers_only_the_counts_are_shown(tmp_path: Path) -> None:
    made, out = MadeRun(tmp_path / "run"), console(terminal=True)
    made.begin(ready=False)
    made.write(WorkersReady(100))
    made.send(1, "actor_gen", 0, list(range(60)))
    with Progress(made.run, ppo_experiment(), out, Clock()):
        pass
    assert "actor_gen, step 1 ×60, idle ×40" in shown(out)


def test_a_run_without_a_number_of_steps_shows_what_it_knows(tmp_path: Path) -> None:
    made, out = MadeRun(tmp_path / "run", steps=None), console(terminal=False)
    made.begin()
    made.run.events(0).unlink()  # the line that tells of it was lost
    made.steps(0, 5)
    with Progress(made.run, ppo_experiment(None), out, Clock()) as progress:
        progress.update()
    assert "step 5  reward" in shown(out)
    assert "ETA" not in shown(out)


def test_a_run_of_epochs_shows_the_steps_that_its_master_counted(tmp_path: Path) -> None:
    made, out = MadeRun(tmp_path / "run", steps=None), console(terminal=False)
    made.begin(steps=50)
    made.steps(0, 10)
    with Progress(made.run, ppo_experiment(None), out, Clock()) as progress:
        progress.update()
    assert "step 10/50" in shown(out)
    assert "ETA 20 s" in shown(out)
    assert read_status(made.run.root).steps == 50
    assert "10 of 50" in shown_summary(made)


def shown_summary(made: MadeRun) -> str:
    out = console(terminal=False)
    show(summary(RunReader(made.run)), out)
    return shown(out)


def test_a_sparkline_spans_the_values_it_shows() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([float(value) for value in range(1000)], width=8) == "▁▂▃▄▅▆▇█"


def test_a_call_that_hangs_is_shown_until_it_has_ended(tmp_path: Path) -> None:
    made, out = MadeRun(tmp_path / "run"), console(terminal=True)
    made.begin()
    made.send(1, "rew_inf", 0, [1])
    why = "worker-1 is running rew_inf of step 1"
    made.write(CallStalled(1, "rew_inf", 0, (1,), 95.0, 2.0, (1,), why))
    clock = Clock()
    with Progress(made.run, ppo_experiment(), out, clock) as progress:
        progress.update()
        assert "stalled: rew_inf of step 1, part 0, for" in shown(out) and "waits for worker-1" in shown(out)
        made.execute(1, "rew_inf", 0, [1])
        made.write(CallWentOn(1, "rew_inf", 0, 99.0))
        before, clock.now = len(shown(out)), clock.now + 1
        progress.update()
        assert "stalled" not in shown(out)[before:]


def test_top_of_a_run_that_has_ended_says_what_it_came_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    made.steps(0, 20)
    made.run.publish_verdict(0, Verdict(0, "done", 0, "step 20 was the last", None, None, None, BEGAN + 20))
    assert main(["top", str(made.run.root)]) == ExitCode.DONE
    said = capsys.readouterr().out
    assert "run · done · step 20 was the last" in said and "reward" in said and "what to try next" in said


@pytest.mark.parametrize("words", [["top"], ["mirror", "--follow"]])
def test_a_run_that_slurm_queues_again_is_followed_through_its_preemption(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, asked = MadeRun(tmp_path / "run", cluster=ClusterConfig(type="slurm")), 0
    made.begin()
    made.steps(1, 20)
    made.verdict("preempted", ExitCode.PREEMPTED, "Slurm preempts the job")

    def queue_of(_: RunDirectory) -> Queue:
        """The run goes on as soon as somebody has asked."""
        nonlocal asked
        asked += 1
        made.begin()
        made.steps(21, 30)
        made.verdict("done", 0, "step 30 was the last")
        return Queue((JobSeen("master", 7, "7", "requeued", "REQUEUED", "", "BeginTime"),))

    monkeypatch.setattr(queues, "queue_of", queue_of)
    monkeypatch.setattr(mirror, "LOOK_S", 0.01)
    monkeypatch.setattr(top, "DRAW_EVERY_S", 0.01)
    assert main([words[0], str(made.run.root), *words[1:]]) == ExitCode.DONE
    said = capsys.readouterr().out
    assert asked == 1 and ("step 30 was the last" in said if words == ["top"] else "30 steps are in" in said), said


def test_a_course_has_a_gap_where_there_is_no_number() -> None:
    assert sparkline([1.0, math.nan, 3.0, math.inf]) == "▁ █ " and sparkline([math.nan]) == " "

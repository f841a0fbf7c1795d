"""docs/simulate.md: its commands, for models of 7 billion parameters; and what `hpcrl simulate` refuses."""

import re
import shlex
from pathlib import Path

import msgspec
import pytest
from support.seven_billion import write_seven_billion

from hpcrl.cli.main import main
from hpcrl.errors import ExitCode
from hpcrl.simulation.told import SimulationTold

PAGE = (Path(__file__).parent.parent / "docs" / "simulate.md").read_text(encoding="utf-8")
PLAIN, LOSING, PREEMPTED, RANGED = (shlex.split(line)[1:] for line in re.findall(r"^hpcrl .*$", PAGE, re.MULTILINE))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_seven_billion(tmp_path, batch_size=64)


def told(capsys, words):
    assert main([*words, "--json"]) == ExitCode.DONE
    return msgspec.json.decode(capsys.readouterr().out, type=SimulationTold)


def test_the_commands_of_the_page_say_what_steps_and_disturbances_cost(folder, capsys):
    plain, losing = told(capsys, PLAIN), told(capsys, LOSING)
    assert plain.steps == losing.steps == 6 and len(plain.attempts) == 1 and plain.lost_work_s == 0
    first, second = losing.attempts
    assert first.ending.startswith("lost: agent-1: silent") and second.ending == "done: step 6 was the last"
    assert first.ended_s == second.begun_s < second.ended_s == losing.seconds
    assert second.read and second.replayed and losing.lost_work_s > 0
    assert second.recovered_s is not None and second.recovered_s > 9
    assert losing.seconds > plain.seconds + second.recovered_s / 2 and losing.goodput < plain.goodput
    assert plain.checkpoint is None and losing.checkpoint is not None and losing.checkpoint.steps >= 1
    assert {step.step for attempt in plain.timeline.attempts for step in attempt.steps} == {4, 5, 6}


def test_too_few_steps_are_told_and_more_are_simulated_where_calls_are_behind(folder, capsys):
    few, enough = told(capsys, [*PLAIN[:-2], "--steps", "3"]), told(capsys, PLAIN)
    assert any(notice.endswith("Add --steps 6.") for notice in few.notices)
    assert not any("Too few steps" in notice for notice in enough.notices)
    behind = told(capsys, [*PLAIN[:-2], "--control.steps", "50", "--lag", "1"])
    assert behind.steps == 16 and not any("Too few steps" in notice for notice in behind.notices)


def test_a_preempted_and_a_late_node_are_on_the_page_that_is_written(folder, capsys):
    first, *_ = told(capsys, [*PREEMPTED[:-2], "--steps", "4"]).attempts
    assert first.ending == "lost: node 0 is to go: it is taken away in 30 s"
    assert first.begun_s == 0 and first.ready_s > 120
    assert main(PREEMPTED) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert shown.startswith("2 nodes, 16 workers, H100") and "goodput" in shown and "timeline.html" in shown
    assert "\nattempt 0: lost: node 0 is to go: it is taken away in 30 s\n" in shown
    assert b"<h1>Timeline of" in (folder / "timeline.html").read_bytes()
    assert main([*PREEMPTED, "--json"]) == ExitCode.DONE
    printed = capsys.readouterr()
    assert msgspec.json.decode(printed.out) and printed.err.endswith("timeline.html\n")


def test_a_slow_worker_lowers_the_goodput(folder, capsys):
    plain, slow = told(capsys, PLAIN), told(capsys, [*PLAIN, "--slow", "3=3"])
    assert slow.step_s > 2 * plain.step_s
    assert slow.goodput == pytest.approx(plain.goodput * plain.seconds / slow.seconds)


@pytest.mark.parametrize(("topology", "waits"), [("array", 9), ("colocated", 1)])
def test_no_node_is_there_before_it_is_replaced_even_where_all_are_queued_again(folder, capsys, topology, waits):
    words = ["--lose", "1@step3", "--replaced", "1h", "--cluster.topology", topology]
    lost, *others = told(capsys, [*PLAIN, *words]).attempts
    *waiting, last = others
    assert len(waiting) == waits and all(it.ready_s is None for it in waiting)
    assert last.ending.startswith("done") and last.ready_s > lost.ended_s + 3580
    assert main([*PLAIN, *words]) == ExitCode.DONE
    assert ("attempts 2 to 9: queued: 1 of 2" in capsys.readouterr().out) == (waits == 9)


def test_a_run_that_fails_ends_with_its_exit_code_and_says_no_time_of_a_step(folder, capsys):
    assert main([*PLAIN, "--mtbf", "40s", "--seed", "3"]) == ExitCode.NEVER_REQUEUE
    shown = capsys.readouterr().out
    assert "failed: 3 attempts in a row" in shown and "0 steps in" in shown and "one every" not in shown


def test_a_plan_that_does_not_fit_and_what_disturbed_nothing_are_told(folder, capsys):
    words = ["--lose", "0@9h"]
    fits, beyond = told(capsys, PLAIN), told(capsys, [*PLAIN, "--allocation", "manual", *words])
    assert not any(notice.startswith("does not fit") for notice in fits.notices)
    (lacks,) = (notice for notice in beyond.notices if notice.startswith("does not fit"))
    assert re.fullmatch(
        r"does not fit: \w+ needs [\d.]+ GiB of 73.60 GiB on its fullest worker; `hpcrl plan` .*", lacks
    )
    assert beyond.notices[0] == "--lose 0@9h never happened: the run ended before."
    late = told(capsys, [*PLAIN, "--late", "1=20s", "--lose", "1@4s"])
    assert late.notices[0] == "--lose 1@4s disturbed nothing: node 1 was not there then."


def test_a_range_of_nodes_grows_when_the_late_ones_come(folder, capsys):
    assert main(RANGED) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert shown.startswith("4 nodes, 32 workers, H100 (data sheets); done: step 20 was the last")
    rows = [line.split()[:2] for line in shown.splitlines() if line[:1] in "01" and " s " in line]
    assert rows[:2] == [["0", "2"], ["1", "4"]] and "attempt  nodes  began" in shown
    assert "attempt 0: grown: nodes 2, 3 can join: the open steps are finished first" in shown


@pytest.mark.parametrize(
    ("words", "said", "instead"),
    [
        ("--lose 2@40s", "--lose 2@40s: there is no node 2; there are nodes 0 to 1. Name others.", "--lose 1@40s"),
        ("--nodes 1 --lose 1@4s", "--lose 1@4s: there is no node 1; there is only node 0. Name", "--lose 0@4s"),
        ("--lose 1@step9", "--lose 1@step9: there is no step 9; there are steps 1 to 6", "--lose 1@step9 --steps 9"),
        ("--lose 1@-4s", "--lose 1@-4s: -4s is no duration", "--lose 1@4s"),
        ("--lose 1", "--lose 1 is incomplete", "--lose 1@2.5m"),
        ("--kill 16@1s", "there is no worker 16; there are workers 0 to 15", "--kill 15@1s"),
        ("--preempt 1@4s", "Write --preempt NODE@WHEN:NOTICE", "--preempt 1@4s:30s"),
        ("--slow 3=0", "0 is no factor", "--slow 3=2"),
        ("--slow x=2", "x is no number", "--slow-disk 0=2"),
        ("--late 5=3s", "there is no node 5", "--late 1=3s"),
        ("--mtbf 0s", "--mtbf is 0", "--mtbf 24h"),
        ("--wall-time 3", "3 is no duration", "--wall-time 3d"),
        ("--steps 0", "--steps 0 is no number of steps", "--steps 1"),
        (
            "--steps 99999999999",
            "--steps 99999999999 is no number of steps to simulate. Write 1 to 10,000.",
            "--steps 1",
        ),
        ("--data.batch_size 3000000 --steps 7", "texts are too many to reckon with", "--steps 1"),
        ("--seed -1", "--seed -1 is no seed", "--seed 1"),
        (f"--lose {'9' * 5000}@step1", "is no number of 0 or more, with 9 digits at most", "--lose 0@step1"),
        ("--preempt 1@4s:x", "--preempt 1@4s:x: x is no duration", "--preempt 1@4s:30s"),
        ("--wall-time 11s", "finished no call: the run is to go: its allocation ends soon, and ", "--wall-time 1h"),
    ],
)
def test_what_is_none_of_the_run_is_refused_and_the_advice_leads_on(folder, capsys, words, said, instead):
    assert main([*PLAIN, *words.split()]) == ExitCode.CONFIGURATION
    assert said in capsys.readouterr().err
    assert main([*PLAIN, *instead.split()]) == ExitCode.DONE

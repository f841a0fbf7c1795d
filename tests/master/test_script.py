"""Scripts: what they ask for is made, written down, and the same however often they are killed."""

import itertools
import re
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from support import repeated_script, toy_script, wayward_script
from support.archives import archives
from support.chaos import (
    Remains,
    begin,
    create_run,
    ends_alike,
    finish,
    outputs,
    remains,
    toy_experiment,
    whole_run,
)
from support.cluster import wait_until_gone
from support.covering import covering
from support.faults import Strike
from support.in_memory import FAST

from hpcrl.config.control import ControlConfig
from hpcrl.config.experiment import to_dict
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Called, Closed, Done, Trained
from hpcrl.durable.once import MOST_STATE
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.event_log import decode
from hpcrl.events import CallStalled, StateGrows

ALGORITHM = f"{Path(toy_script.__file__)}:ALGORITHM"
PATIENT = {"lost_after_s": 5.0, "start_timeout_s": 60.0}


def scripted(**cluster: Any) -> Any:
    return replace(toy_experiment(**(PATIENT | cluster)), algorithm=ALGORITHM)


@pytest.fixture(scope="module")
def whole() -> Iterator[RunDirectory]:
    """A run that nothing has disturbed."""
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        yield whole_run(Path(name), scripted())


@pytest.fixture(scope="module")
def undisturbed(whole: RunDirectory) -> Remains:
    return remains(whole)


def events(run: RunDirectory) -> list[Any]:
    return [line.event for line in read_history(run).lines]


def test_what_a_script_asks_for_is_written_down_before_all_that_follows_from_it(whole: RunDirectory) -> None:
    found = events(whole)
    assert None not in found
    calls = {step: [it.call for it in found if isinstance(it, Called) and it.step == step] for step in range(1, 6)}
    every = ["actor_gen", "actor_gen_2", "rew_inf", "critic_inf", "shifted", "critic_train"]
    evaluation = ["eval_gen", "eval_rew"]
    assert calls == {
        1: every,
        2: [*every, "actor_train"],
        3: [*every, "actor_train", *evaluation],
        4: [*every, "actor_train"],
        5: [*every, "actor_train", *evaluation],
    }
    known: set[tuple[int, str]] = set()
    done: Counter[tuple[int, str]] = Counter()
    for it in found:
        if isinstance(it, Called):
            makers = {piece.call for pieces in it.inputs.values() for piece in pieces if piece.call}
            assert {(it.step, maker) for maker in makers} <= known
            known.add((it.step, it.call))
            if it.call == "actor_train":  # by then the script had read the rewards
                assert done[it.step, "rew_inf"] == 1
        elif isinstance(it, Done | Trained):
            assert (it.step, it.call) in known
            done[it.step, it.call] += 1
    turns = [it.turn for it in found if isinstance(it, Closed)]
    assert [turn.versions for turn in turns if turn] == [
        {"critic": step} | ({"actor": step - 1} if step > 1 else {}) for step in range(1, 6)
    ]


# Where the master or the script's worker, which is the third, passes; how often it has passed there before.
POINTS = [
    ("master", "master.ask", 1, "self"),
    ("master", "master.ask", 9, "worker-2"),
    ("master", "master.ask", 16, "all"),
    ("master", "master.turn", 2, "self"),
    ("master", "master.turn", 3, "worker-2"),
    ("master", "journal.before", 6, "self"),
    ("master", "journal.after", 12, "agent-0"),
    ("master", "journal.after", 21, "worker-2"),
    ("master", "manifest.published", 1, "self"),
    ("worker-2", "script.ask", 4, "self"),
    ("worker-2", "script.ask", 14, "master"),
    ("worker-2", "script.answered", 8, "self"),
    ("worker-2", "script.answered", 20, "all"),
    ("worker-2", "worker.executed", 3, "self"),
    ("worker-2", "spill.published", 2, "master"),
    ("worker-0", "worker.call", 11, "self"),
    ("worker-1", "worker.executed", 17, "worker-2"),
    ("worker-0", "shard.published", 2, "worker-2"),
]


@pytest.mark.parametrize(
    ("who", "point", "nth", "target"),
    covering(POINTS, itemgetter(0), itemgetter(3), lambda point: point[1].partition(".")[0]),
)
def test_a_script_that_is_killed_ends_as_if_nothing_had_happened(
    undisturbed: Remains, folder: Path, who: str, point: str, nth: int, target: str
) -> None:
    run = create_run(folder / "run", scripted())
    ends_alike(run, undisturbed, Strike(folder, "strike", who, point, "KILL", target, nth))


REPEATED = f"{Path(repeated_script.__file__)}:TOY"


@pytest.mark.parametrize(
    ("who", "point", "nth", "target"),
    [
        ("worker-0", "worker.executed", 12, "all"),
        pytest.param("worker-2", "script.ask", 30, "self", marks=pytest.mark.slow),
        pytest.param("master", "master.turn", 3, "self", marks=pytest.mark.slow),
    ],
)
def test_a_script_that_repeats_and_renames_is_killed_and_ends_as_if_nothing_had_happened(
    tmp_path: Path, who: str, point: str, nth: int, target: str
) -> None:
    experiment = replace(scripted(), algorithm=REPEATED)
    (tmp_path / "whole").mkdir()
    undisturbed = remains(whole_run(tmp_path / "whole", experiment))
    assert {row["script/of_z"] for row in undisturbed.metrics} == {0.0}
    assert {row["script/samples"] for row in undisturbed.metrics} == {16.0, 32.0}  # of 4 and of 8
    run = create_run(tmp_path / "run", experiment)
    ends_alike(run, undisturbed, Strike(tmp_path, "strike", who, point, "KILL", target, nth))


def test_what_the_script_says_of_a_step_is_in_its_row(whole: RunDirectory, undisturbed: Remains) -> None:
    rows = {row["step"]: row for row in undisturbed.metrics}
    assert all(rows[step]["script/loss"] == rows[step]["critic_train/loss"] for step in rows)
    assert rows[3]["script/held_out"] == pytest.approx(rows[3]["eval_rew/r"])
    assert list(archives(whole)) == [1, 2, 3, 4, 5], outputs(whole)
    assert not list(itertools.filterfalse(rows.get, range(1, 6)))


WAYWARD = f"{Path(wayward_script.__file__)}:ALGORITHM"
DIFFERS = {
    "other call": r"asks for critic_inf where wayward_script.py:\d+ had asked for rew_inf",
    "other rows": r"asks for rew_inf on 7 samples \(.*\) where it had been asked for on 8",
    "other number": r"computes shifted with \[0.5\] where it had been with \[0.25\]",
    "ends early": r"the turn ends where wayward_script.py:\d+ had asked for actor_train",
    "one more": r"asks for critic_train_2 where the turn had ended",
    "other log": r"ends it with lr logged as 0\.5 where it had been 0\.05",
    "other state": r'run.state ends as {"by":0.125} where it had ended as {"by":1.05}',
}


def struck(run: RunDirectory, folder: Path) -> None:
    """Begin it; its master is killed in the second turn, whose first asks have lines."""
    jobs = begin(run, "first", Strike(folder, "strike", "master", "master.ask", "KILL", "self", 9))
    assert jobs.wait_for("master", 90) == -signal.SIGKILL, outputs(run)
    jobs.kill_all()
    wait_until_gone(run.root)


@pytest.mark.parametrize(
    "mood",
    [
        pytest.param(it, marks=() if it in ("other call", "other log", "other number") else pytest.mark.slow)
        for it in DIFFERS
    ],
)
def test_a_script_that_does_otherwise_when_it_runs_again_is_told_so_and_trains_on_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, mood: str
) -> None:
    experiment = replace(scripted(), algorithm=WAYWARD, control=ControlConfig(steps=3))
    (folder / "whole").mkdir()
    undisturbed = remains(whole_run(folder / "whole", experiment))
    run = create_run(folder / "run", experiment)
    struck(run, folder)
    before = [line for line in events(run) if isinstance(line, Done | Trained | Called | Closed)]
    assert before and before[-1].step == 2, (outputs(run), events(run))
    with monkeypatch.context() as patch:
        patch.setenv(wayward_script.MOOD, mood)
        jobs = begin(run, "again")
        assert jobs.wait_for("master", 60) == ExitCode.DATA, outputs(run)
        jobs.kill_all()
    verdict = run.read_verdict(run.newest_attempt())
    assert verdict is not None and re.search(DIFFERS[mood], verdict.reason), verdict
    assert "step 1" in verdict.reason and "run.state" in verdict.reason
    assert [line for line in events(run) if isinstance(line, Done | Trained | Called | Closed)] == before
    assert finish(run) == [0], outputs(run)
    assert remains(run) == undisturbed


@pytest.mark.parametrize(
    "mood",
    [
        pytest.param(mood, marks=() if mood in ("a clock", "a file") else pytest.mark.slow)
        for mood in wayward_script.OUTSIDE
    ],
)
def test_what_a_rehearsal_has_missed_is_found_when_the_script_runs_again_and_never_trained_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, mood: str
) -> None:
    run = create_run(folder / "run", replace(scripted(), algorithm=WAYWARD, control=ControlConfig(steps=3)))
    monkeypatch.setenv(wayward_script.MOOD, mood)
    monkeypatch.setenv(wayward_script.FILE, str(folder / "number"))
    (folder / "number").write_text("1.0")
    struck(run, folder)
    before = [line for line in events(run) if isinstance(line, Done | Trained | Called | Closed)]
    assert before and before[-1].step == 2, (outputs(run), events(run))
    (folder / "another").write_text("2.0")
    (folder / "another").replace(folder / "number")
    monkeypatch.setenv(wayward_script.FILE, f"{folder}/./number")
    jobs = begin(run, "again")
    assert jobs.wait_for("master", 60) == ExitCode.DATA, outputs(run)
    jobs.kill_all()
    verdict = run.read_verdict(run.newest_attempt())
    assert verdict is not None and re.search(r"computes shifted with \[.*\] where it had been with \[", verdict.reason)
    assert [line for line in events(run) if isinstance(line, Done | Trained | Called | Closed)] == before


def test_what_is_asked_for_again_is_asked_for_under_the_settings_of_its_line(folder: Path) -> None:
    """A changed setting is seen from the first ask without a line on; before, it would look like another script."""
    experiment = replace(scripted(), algorithm=WAYWARD, control=ControlConfig(steps=3))
    run = create_run(folder / "run", experiment)
    struck(run, folder)
    changed = replace(experiment, toy=replace(experiment.toy, lr=0.25))
    run.submit_settings("s0", run.add_settings(to_dict(changed)))
    assert finish(run) == [0], outputs(run)
    rows = {row["step"]: row for row in remains(run).metrics}
    assert [rows[step]["script/lr"] for step in (1, 2, 3)] == [0.05, 0.25, 0.25]


def test_a_run_is_done_when_its_script_has_returned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes after its loop; what it raises there ends the run as it does anywhere."""
    run = create_run(folder / "run", replace(scripted(), algorithm=WAYWARD, control=ControlConfig(steps=2)))
    monkeypatch.setenv(wayward_script.FILE, str(folder / "left"))
    with monkeypatch.context() as patch:
        patch.setenv(wayward_script.MOOD, "fails late")
        jobs = begin(run, "first")
        assert jobs.wait_for("master", 60) == ExitCode.USER_CODE, outputs(run)
        jobs.kill_all()
    verdict = run.read_verdict(run.newest_attempt())
    assert verdict is not None and "The script failed in what follows step 2." in verdict.reason, verdict
    assert not (folder / "left").exists()
    monkeypatch.setenv(wayward_script.MOOD, "ends late")
    assert finish(run) == [0], outputs(run)
    assert (folder / "left").read_text() == "done"


def test_a_script_that_hangs_after_its_loop_holds_the_workers_no_longer_than_it_may_be_silent(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(wayward_script.MOOD, "hangs late")
    control = ControlConfig(steps=2, script_timeout_s=0.5)
    run = create_run(folder / "run", replace(scripted(), algorithm=WAYWARD, control=control))
    assert finish(run) == [0], outputs(run)
    told = [decode(line).event for line in run.events(0).read_bytes().splitlines()]
    assert any(isinstance(event, CallStalled) and "in loop" in event.stack for event in told)


def test_a_state_that_is_half_full_is_told_once_in_an_attempt(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(wayward_script.MOOD, "much")
    run = whole_run(folder, replace(scripted(), algorithm=WAYWARD, control=ControlConfig(steps=4)))
    told = [decode(line).event for line in run.events(0).read_bytes().splitlines()]
    (note,) = [event for event in told if isinstance(event, StateGrows)]
    assert (note.step, note.most) == (2, MOST_STATE) and note.bytes > MOST_STATE // 2


def test_a_script_that_ends_its_process_is_told_of_its_line_and_resumed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it forks ends as it wants to."""
    run = create_run(folder / "run", replace(scripted(), algorithm=WAYWARD, control=ControlConfig(steps=2)))
    with monkeypatch.context() as patch:
        patch.setenv(wayward_script.MOOD, "ends its process")
        jobs = begin(run, "first")
        assert jobs.wait_for("master", 60) == ExitCode.USER_CODE, outputs(run)
        jobs.kill_all()
        verdict = run.read_verdict(run.newest_attempt())
    said = r'The script failed in step 1\.\n.*wayward_script\.py", line \d+, in loop\n.*SystemExit: os\._exit\(3\)'
    assert verdict is not None and re.search(said, verdict.reason, re.DOTALL), verdict
    monkeypatch.setenv(wayward_script.MOOD, "forks")
    assert finish(run) == [0], outputs(run)

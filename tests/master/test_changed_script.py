"""A script that was changed between two attempts: what of open steps ends as it was begun, and what begins anew."""

import math
import signal
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from support import wayward_script
from support.archives import archives
from support.changed_script import written
from support.chaos import (
    MOST_RESUMES,
    Remains,
    begin,
    create_run,
    finish,
    outputs,
    remains,
    started_twice,
    toy_experiment,
    whole_run,
)
from support.cluster import wait_until_gone
from support.covering import covering
from support.faults import Strike

from hpcrl.config.control import ControlConfig
from hpcrl.config.experiment import to_dict
from hpcrl.data.user_code import code_places, collect_code
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Called, Opened, Trained
from hpcrl.durable.once import SetAside, Turn
from hpcrl.durable.recovery import RecoveryPlan
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.step_lines import StepLines
from hpcrl.errors import ExitCode
from hpcrl.master.divergence import (
    CORRECT_IT,
    OF_OTHER_WORKERS,
    ScriptChanged,
    ScriptDiverged,
    by_a_change,
    unlike_logged,
)
from hpcrl.master.turn import OpenTurn
from hpcrl.wire.script_messages import TurnEnded

STEPS = range(1, 5)
NEVER = 1000
"""The first step of the script's second version, in its first."""


def experiment_of(algorithm: str) -> Any:
    return replace(
        toy_experiment(lost_after_s=5.0, start_timeout_s=60.0),
        algorithm=algorithm,
        control=ControlConfig(steps=max(STEPS)),
    )


def make(folder: Path, experiment: Any) -> RunDirectory:
    """As `hpcrl submit` does, with a copy of the script."""
    return create_run(folder, experiment, collect_code(code_places(experiment), ()))


def change(run: RunDirectory, experiment: Any, submissions: range = range(MOST_RESUMES)) -> None:
    """As `hpcrl resume --accept-changed algorithm` does; submissions after it run the change too."""
    version = run.add_settings(to_dict(experiment), run.keep_code(collect_code(code_places(experiment), ())))
    for number in submissions:
        run.submit_settings(f"s{number}", version)


def lines(run: RunDirectory, kind: type) -> list[Any]:
    return [line.event for line in read_history(run).lines if isinstance(line.event, kind)]


def without_settings(run: RunDirectory) -> Remains:
    """Its rows name versions of settings that the other run has not."""
    found = remains(run)
    return replace(found, metrics=tuple({**row, "settings": 0} for row in found.metrics))


def struck_at(run: RunDirectory, folder: Path, ask: int) -> None:
    """Begin it; its master is killed at this ask, of which a turn has eight: the sixth and the last train."""
    jobs = begin(run, "first", Strike(folder, "strike", "master", "master.ask", "KILL", "self", ask))
    assert jobs.wait_for("master", 90) == -signal.SIGKILL, outputs(run)
    jobs.kill_all()
    wait_until_gone(run.root)


AT = {
    "in the rollout": (11, 2, [2]),
    "before an update": (14, 2, [2]),
    "among the updates": (16, 3, []),
    "at first": (6, 1, [1]),
}
"""The ask at which the run is struck, the first step of the changed script, and what is set aside."""


@pytest.mark.parametrize(
    "where",
    [pytest.param(it, marks=() if it in ("in the rollout", "among the updates") else pytest.mark.slow) for it in AT],
)
def test_a_changed_script_continues_where_no_role_has_changed_yet(tmp_path: Path, where: str) -> None:
    ask, since, aside = AT[where]
    (tmp_path / "whole").mkdir()
    expected = whole_run(tmp_path / "whole", experiment_of(written(tmp_path / "both.py", since)))
    experiment = experiment_of(written(tmp_path / "script.py", NEVER))
    run = make(tmp_path / "run", experiment)
    struck_at(run, tmp_path, ask)
    assert max((line.step for line in lines(run, Trained)), default=0) == since - 1
    written(tmp_path / "script.py", 0)
    change(run, experiment)

    assert finish(run) == [0], outputs(run)
    assert [line.step for line in lines(run, SetAside)] == aside
    assert without_settings(run) == without_settings(expected)
    assert archives(run) == archives(expected)
    rows = remains(run).metrics
    assert [(row["script/new"], row["settings"]) for row in rows] == [(step >= since, step >= since) for step in STEPS]


KILLED = [
    ("master", "journal.before", 2, "self"),
    ("master", "journal.after", 1, "all"),
    ("master", "master.ask", 8, "self"),
    ("master", "master.turn", 2, "worker-2"),
    ("master", "manifest.published", 1, "self"),
    ("worker-0", "worker.executed", 2, "self"),
]
"""While the change is followed: once in the first attempts of it."""


@pytest.mark.parametrize(("who", "point", "nth", "target"), covering(KILLED, itemgetter(0)))
def test_killed_while_the_change_is_followed_it_ends_as_if_nothing_had_happened(
    tmp_path: Path, who: str, point: str, nth: int, target: str
) -> None:
    (tmp_path / "whole").mkdir()
    expected = whole_run(tmp_path / "whole", experiment_of(written(tmp_path / "both.py", 3)))
    experiment = experiment_of(written(tmp_path / "script.py", NEVER))
    run = make(tmp_path / "run", experiment)
    struck_at(run, tmp_path, 16)
    written(tmp_path / "script.py", 0)
    change(run, experiment)

    strike = Strike(tmp_path, "again", who, point, "KILL", target, nth)
    finish(run, strike)
    assert strike.marker.exists(), "the strike never came: the test tests nothing"
    assert without_settings(run) == without_settings(expected), outputs(run)
    assert archives(run) == archives(expected)
    assert started_twice(run) == []


def test_other_settings_make_no_other_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What decides otherwise lies outside of the script's files: nothing is set aside. Corrected as advised, it goes
    on."""
    text = Path(wayward_script.__file__).read_text()
    (tmp_path / "script.py").write_text(text)
    experiment = experiment_of(f"{tmp_path / 'script.py'}:ALGORITHM")
    run = make(tmp_path / "run", experiment)
    struck_at(run, tmp_path, 9)
    change(run, replace(experiment, toy=replace(experiment.toy, delay_s=0.001)), range(1))
    monkeypatch.setenv(wayward_script.MOOD, "other number")
    assert master_of(run, "s0") == ExitCode.DATA, outputs(run)
    assert lines(run, SetAside) == []
    assert CORRECT_IT in outputs(run)
    (tmp_path / "script.py").write_text(text.replace('os.environ.get(MOOD, "")', '""'))
    change(run, experiment, range(1, 2))
    assert master_of(run, "s1") == 0, outputs(run)
    assert lines(run, SetAside) == []


def master_of(run: RunDirectory, submission: str) -> int:
    """How this submission's master ends; an ended submission is never begun again: its agents would leave at once."""
    jobs = begin(run, submission)
    try:
        return jobs.wait_for("master", 90)
    finally:
        jobs.kill_all()


def a_turn(step: int, *versions: int) -> OpenTurn:
    """Recorded with an ask under each of these versions of the settings."""
    opened = Opened(step, ("0@0",), step, {}, {}, 0, (), 1, False, False, scripted=True)
    asks = [Called(step, i + 1, f"call{i}", ("0@0",), {}, 1, {}, (), 0, under) for i, under in enumerate(versions)]
    return OpenTurn(StepLines(opened), StepLines(opened, called=tuple(asks)))


def test_who_ends_what_follows_from_what_is_recorded() -> None:
    turn = a_turn(2, 0, 1)
    diverged = ScriptDiverged(turn, "x.py:3 asks for another")
    assert turn.recorded is not None
    recovery = RecoveryPlan(opened=(turn.recorded,))
    found = by_a_change(diverged, recovery, {0}, one)
    assert isinstance(found, ScriptChanged) and found.aside == (SetAside(2),) and found.under is None
    assert by_a_change(diverged, recovery, {3}, one) is diverged
    closed = by_a_change(diverged, replace(recovery, closed=frozenset({1, 2})), {0, 1}, one)
    assert isinstance(closed, ScriptChanged) and closed.aside == () and closed.under == 1


def one(call: str) -> int:
    """In how many parts it is made now."""
    return 1


def test_a_script_that_does_otherwise_among_other_workers_is_told_so() -> None:
    turn = a_turn(2, 0, 1)
    found = by_a_change(ScriptDiverged(turn, "x.py:3 asks for another"), RecoveryPlan(), (), lambda call: 3)
    assert isinstance(found, ScriptDiverged) and found.turn is turn
    assert "x.py:3 asks for another. The number of workers has changed: call0 was made in 1 parts" in str(found)
    assert found.advice == (OF_OTHER_WORKERS,)


def test_numbers_that_a_turn_logs_are_those_that_it_logged() -> None:
    had = Turn("{}", {"loss": 0.5, "kept": math.nan, "more": 1.0}, 1, {}, 0)

    def found(**logged: float) -> str:
        return unlike_logged(TurnEnded(2, 1, "{}", logged, at="x.py:3"), had)

    assert found(more=1.0, kept=float("nan"), loss=0.5) == ""
    assert found(more=1.0, kept=math.nan, loss=0.25) == "x.py:3 ends it with loss logged as 0.25 where it had been 0.5"
    assert found(more=1.0, loss=0.5) == "x.py:3 ends it with kept logged as nothing where it had been nan"
    assert "with new logged as 2.0 where it had been nothing" in found(more=1.0, kept=math.nan, loss=0.5, new=2.0)
    assert unlike_logged(TurnEnded(2, 1, "{}", {"loss": 1.0}), None) == ""


def test_a_changed_script_may_log_something_else_of_a_step_whose_row_is_written() -> None:
    turn = a_turn(2, 0)
    diverged = ScriptDiverged(turn, "it logs something else", only_logs=True)
    closed = RecoveryPlan(closed=frozenset({1, 2}))
    assert by_a_change(diverged, closed, {0}, one) is None
    assert by_a_change(diverged, closed, (), one) is diverged


def test_what_a_script_logs_may_be_changed_without_another_attempt(tmp_path: Path) -> None:
    text = Path(wayward_script.__file__).read_text()
    (tmp_path / "script.py").write_text(text)
    experiment = experiment_of(f"{tmp_path / 'script.py'}:ALGORITHM")
    run = make(tmp_path / "run", experiment)
    struck_at(run, tmp_path, 9)
    (tmp_path / "script.py").write_text(text.replace("step.log(", "step.log(more=1.0, "))
    change(run, experiment)
    assert finish(run) == [0], outputs(run)
    assert [row.get("script/more") for row in remains(run).metrics] == [None, 1.0, 1.0, 1.0]
    assert lines(run, SetAside) == []


@pytest.mark.parametrize("ask", [15, 30])
def test_a_script_that_prepares_ahead_is_changed(tmp_path: Path, ask: int) -> None:
    experiment = experiment_of(written(tmp_path / "script.py", NEVER, lag=1))
    run = make(tmp_path / "run", experiment)
    struck_at(run, tmp_path, ask)
    trained = max((line.step for line in lines(run, Trained)), default=0)
    written(tmp_path / "script.py", 0, lag=1)
    change(run, experiment)

    assert finish(run) == [0], outputs(run)
    assert [row["script/new"] for row in remains(run).metrics] == [step > trained for step in STEPS]
    assert [line.step for line in lines(run, SetAside)] == [trained + 1]
    called = [line for line in lines(run, Called) if line.call == "actor_gen"]
    assert all(line.version in (max(line.step - 2, 0), trained) for line in called if line.step > trained), called

"""A run that knows when its allocation ends: no call is begun that cannot end before, and nothing is lost."""

import dataclasses
import time
from pathlib import Path

import pytest
from support.allocations import EndsAt
from support.chaos import (
    Remains,
    begin,
    create_run,
    finish,
    outputs,
    patient_experiment,
    remains,
    rows_of,
    started_twice,
)
from support.made_parts import made_in

from hpcrl.config.control import ControlConfig
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Checkpointed, Opened
from hpcrl.errors import ExitCode
from hpcrl.master.allocation import EVERYTHING
from hpcrl.master.attempt import END_MARGIN_S

STEPS = 14


def experiment(delay_s: float):
    made = patient_experiment(delay_s=delay_s)
    return dataclasses.replace(made, control=ControlConfig(steps=STEPS))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Remains:
    run = create_run(tmp_path_factory.mktemp("undisturbed") / "run", experiment(0.0))
    finish(run)
    return remains(run)


@pytest.mark.parametrize("which", [EVERYTHING, pytest.param(0, marks=pytest.mark.slow)])
def test_a_run_leaves_before_its_allocation_ends_with_a_checkpoint(
    tmp_path: Path, undisturbed: Remains, which: int
) -> None:
    run = create_run(tmp_path / "run", experiment(0.2))
    ends = time.time() + END_MARGIN_S + 8.0
    jobs = begin(run, "first", allocation=EndsAt(which, ends))
    assert jobs.wait_for("master", 90) == ExitCode.REQUEUE, outputs(run)
    assert time.time() < ends
    jobs.wait(90)
    verdict = run.read_verdict(0)
    assert verdict is not None and "its allocation ends soon, and " in verdict.reason and " takes " in verdict.reason
    events = [line.event for line in read_history(run).lines]
    opened = [event.step for event in events if isinstance(event, Opened)]
    kept = [event.step for event in events if isinstance(event, Checkpointed)]
    assert kept and kept[-1] >= opened[-1] - 6, "replaying will not take long"
    finish(run)
    assert remains(run) == undisturbed
    assert started_twice(run) == []


def test_a_call_that_is_longer_than_any_allocation_is_begun_all_the_same(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", experiment(0.0))
    finish_in_time = begin(run, "first", allocation=EndsAt(EVERYTHING, time.time() - 1.0))
    code = finish_in_time.wait_for("master", 90)
    assert code == ExitCode.REQUEUE, outputs(run)
    executed = [it.call for it in made_in(run)]
    assert executed, "the first of each call is tried"
    finish_in_time.kill_all()


def test_an_allocation_that_does_not_answer_ends_nothing(tmp_path: Path, undisturbed: Remains) -> None:
    run = create_run(tmp_path / "run", experiment(0.0))
    jobs = begin(run, "first", allocation=EndsAt(EVERYTHING, 0.0, fails=True))
    assert jobs.wait_for("master", 90) == 0, outputs(run)
    assert remains(run) == undisturbed
    assert any(row["event"] == "allocation silent" for row in rows_of(run.events(0)))

"""Runs stopped in a step, which go on where each home and each copy has another layout or other workers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.chaos import begin, create_run, outputs, remains, started_twice, whole_run
from support.cluster import alive_of
from support.elastic import drifts, finish_on
from support.faults import Strike
from support.hosts import write_task
from support.layout_runs import parameters
from support.tiny_layouts import ALONE, COPIES, HALVES, STAGES, Home, tiny_layouts

from hpcrl.durable.recovery import plan_next_attempt
from hpcrl.durable.rundir import RunDirectory
from hpcrl.launch.elastic import PROMISE, describe_elastic
from hpcrl.placement.plan import plan_for

PATIENT: dict[str, Any] = {"lost_after_s": 60.0, "start_timeout_s": 60.0}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


@pytest.fixture(scope="module")
def alone(task: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return whole_run(tmp_path_factory.mktemp("alone"), tiny_layouts(task, 1, ALONE))


Where = tuple[int, dict[str, Home]]
CHANGES: dict[str, tuple[Where, Where, tuple[str, str, int]]] = {
    "stages to copies": ((2, STAGES), (2, COPIES), ("worker-1", "move.end", 4)),
    "copies to stages": ((2, COPIES), (2, STAGES), ("worker-0", "worker.executed", 10)),
    "halves to stages": ((2, HALVES), (2, STAGES), ("worker-0", "move.begin", 3)),
    "copies to one worker": ((2, COPIES), (1, ALONE), ("master", "master.moving", 3)),
}
FAST = ("copies to one worker",)


@pytest.mark.parametrize("name", [pytest.param(it, marks=() if it in FAST else pytest.mark.slow) for it in CHANGES])
def test_what_goes_on_in_other_layouts_throughout_computes_what_one_worker_computes(
    alone: RunDirectory, task: Path, tmp_path: Path, name: str
) -> None:
    before, after, (role, point, nth) = CHANGES[name]
    began, goes_on = (tiny_layouts(task, *where, **PATIENT) for where in (before, after))
    run = create_run(tmp_path / "run", began)
    strike = Strike(tmp_path, "kill", role, point, "KILL", "all", nth)
    jobs = begin(run, "first", strike)
    jobs.wait_for("master", 90)
    jobs.kill_all()
    assert strike.marker.exists() and stopped_in_a_step(run)
    recovery = plan_next_attempt(run, plan_for(goes_on, 1).changes)
    said = list(describe_elastic(began, goes_on, recovery))
    assert PROMISE in said and any("equal up to rounding" in line for line in said)
    finish_on(run, goes_on)
    assert_nearly_equal(run, alone)
    assert started_twice(run) == [], outputs(run)
    assert all(drift["why"] != "not explained" and not drift["unlike"] for drift in drifts(run))
    assert alive_of(run.root) == []


def stopped_in_a_step(run: RunDirectory) -> bool:
    """Whether some step has lines and no end."""
    recovery = plan_next_attempt(run, {"actor_train": "actor"})
    return any(lines.step not in recovery.closed for lines in recovery.opened)


def assert_nearly_equal(run: RunDirectory, reference: RunDirectory) -> None:
    ours, theirs = remains(run), remains(reference)
    assert ours.ids == theirs.ids
    for row, expected in zip(ours.metrics, theirs.metrics, strict=True):
        assert list(row)[1:] and row.keys() - {"settings"} == expected.keys() - {"settings"}
        for key, value in expected.items():
            if key != "settings":
                np.testing.assert_allclose(row[key], value, rtol=1e-9, atol=1e-9, err_msg=key)
    found, expected_parameters = parameters(run), parameters(reference)
    assert found.keys() == expected_parameters.keys()
    for name, array in found.items():
        np.testing.assert_allclose(array, expected_parameters[name], rtol=1e-9, atol=1e-9, err_msg=name)

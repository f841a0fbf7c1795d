"""Registered methods of a script, on real processes: each mode, in each layout, killed or not."""

import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from support import registered_script
from support.chaos import Remains, begin, create_run, ends_alike, finish, outputs, remains, toy_experiment, whole_run
from support.cluster import wait_until_gone
from support.covering import covering
from support.faults import Strike
from support.in_memory import FAST

from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.config.experiment import to_dict
from hpcrl.config.model import PlacementConfig
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode

ALGORITHM = f"{Path(registered_script.__file__)}:ALGORITHM"


def scripted(workers: int = 2, actor: str = "d2", critic: str = "d1") -> Any:
    made = toy_experiment(lost_after_s=60.0, start_timeout_s=60.0, workers_per_node=workers)
    return replace(
        made,
        algorithm=ALGORITHM,
        control=ControlConfig(steps=3, checkpoint=Frequency(steps=2), evaluate=Frequency(steps=3)),
        actor=PlacementConfig(layout=actor),
        critic=PlacementConfig(layout=critic, mesh="0" if critic == "d1" else None),
        reward=PlacementConfig(mesh="0", layout="d1"),
    )


@pytest.fixture(scope="module")
def whole() -> Iterator[RunDirectory]:
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        yield whole_run(Path(name), scripted())


@pytest.fixture(scope="module")
def undisturbed(whole: RunDirectory) -> Remains:
    return remains(whole)


def said(remains: Remains) -> dict[int, dict[str, float]]:
    """What the script has logged of each step."""
    prefix = "script/"
    return {
        row["step"]: {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)}
        for row in remains.metrics
    }


RIGHT = {"told": 1.0, "items": 1.0, "of_part": 1.0, "twice": 1.0, "spread": 1.0, "left_out": 1.0, "pulled": 0.25}


def test_each_mode_gives_what_it_says(undisturbed: Remains) -> None:
    for step, logged in said(undisturbed).items():
        assert logged.items() >= (RIGHT | {"first": 1.0 + step}).items()
        assert logged["centred"] == pytest.approx(0.0, abs=1e-12) and abs(logged["gap"]) > 0.1
    assert said(undisturbed)[3]["doubled"] == pytest.approx(0.0, abs=1e-12)


POINTS = [
    ("master", "master.ask", 3, "self"),
    ("master", "journal.after", 7, "worker-2"),
    ("worker-0", "worker.executed", 4, "self"),
    ("worker-1", "spill.published", 3, "self"),
    ("worker-2", "script.answered", 9, "self"),
    ("master", "master.ask", 22, "all"),
]


@pytest.mark.parametrize(("who", "point", "nth", "target"), covering(POINTS, itemgetter(3)))
def test_a_script_of_registered_methods_that_is_killed_ends_as_if_nothing_had_happened(
    undisturbed: Remains, tmp_path: Path, who: str, point: str, nth: int, target: str
) -> None:
    run = create_run(tmp_path / "run", scripted())
    ends_alike(run, undisturbed, Strike(tmp_path, "strike", who, point, "KILL", target, nth))


@pytest.mark.parametrize(
    "nth", [2, 9, pytest.param(5, marks=pytest.mark.slow), pytest.param(14, marks=pytest.mark.slow)]
)
def test_a_disk_that_is_full_behind_the_calls_ends_the_run_and_nothing_is_lost(
    tmp_path: Path, undisturbed: Remains, nth: int
) -> None:
    run = create_run(tmp_path / "run", scripted())
    strike = Strike(tmp_path, "full", "master", "journal.before", "FULL", nth=nth)
    jobs = begin(run, "first", strike)
    assert jobs.wait_for("master", 90) == ExitCode.INTERNAL, outputs(run)
    jobs.kill_all()
    assert strike.marker.exists()
    assert "no room for" in outputs(run) and str(run.root) in outputs(run)
    finish(run)
    assert remains(run) == undisturbed


def test_a_step_that_is_resumed_on_fewer_workers_keeps_the_values_that_it_had_begun_with(tmp_path: Path) -> None:
    experiment = replace(scripted(), algorithm=ALGORITHM.replace(":ALGORITHM", ":FEW"))
    run = create_run(tmp_path / "run", experiment)
    jobs = begin(run, "first", Strike(tmp_path, "strike", "master", "master.ask", "KILL", "self", 6))
    assert jobs.wait_for("master", 90) == -signal.SIGKILL, outputs(run)
    jobs.kill_all()
    wait_until_gone(run.root)
    smaller = replace(experiment, cluster=replace(experiment.cluster, workers_per_node=1))
    smaller = replace(smaller, actor=PlacementConfig(layout="d1"))
    run.submit_settings("s0", run.add_settings(to_dict(smaller)))
    assert finish(run) == [0], outputs(run)
    found = said(remains(run))
    assert {step: logged["told"] for step, logged in found.items()} == {1: 2.0, 2: 2.0, 3: 1.0}


LAYOUTS = [f"d{d}t{t}p{p}" for d in (1, 2) for t in (1, 2) for p in (1, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_mode_in_each_layout_gives_what_one_worker_does(whole: RunDirectory, tmp_path: Path, layout: str) -> None:
    workers = int(layout[1]) * int(layout[3]) * int(layout[5])
    (tmp_path / "one").mkdir()
    one = said(remains(whole_run(tmp_path / "one", scripted(1, "d1"))))
    found = said(remains(whole_run(tmp_path, scripted(workers, layout, layout))))
    for step, logged in one.items():
        assert found[step] == pytest.approx(logged, rel=1e-12, abs=1e-12)

"""A line per run, from the ends of its files."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.in_memory import FAST
from support.made_run import MadeRun, ended_run, submit_with
from support.slurm_made import QueueOf, made_on_slurm, seen
from support.work import calls_in

from hpcrl.inspect.listing import find_runs, list_runs, render_list
from hpcrl.inspect.queue import Queue


def test_runs_are_found_and_all_else_is_passed_over(tmp_path: Path) -> None:
    runs = [MadeRun(tmp_path / name).run.root for name in ("a", "b")]
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    damaged = MadeRun(tmp_path / "damaged").run
    damaged.run_json.unlink()
    damaged.run_json.write_text("{")
    (tmp_path / "run.json").write_text("a configuration")
    assert find_runs([tmp_path]) == [*runs, damaged.root]
    assert find_runs([tmp_path, runs[0], tmp_path / "nothing"]) == [*runs, damaged.root]
    (tmp_path / "b" / "key.json").unlink()
    lines = {line.name: line for line in list_runs(find_runs([tmp_path]), QueueOf())}
    assert lines.keys() == {"a", "b", "damaged"} and lines["a"].state == lines["b"].state == "submitted"
    assert lines["damaged"].state == "unknown" and "run.json is damaged" in lines["damaged"].why


def test_a_line_tells_state_step_metric_and_exit_code(tmp_path: Path) -> None:
    ended_run(tmp_path / "done")
    failed = MadeRun(tmp_path / "failed")
    failed.begin()
    failed.verdict("failed", 66, "boom")
    working = MadeRun(tmp_path / "working", steps=None)
    working.begin()
    working.steps(0, 400)
    lines = {line.name: line for line in list_runs(find_runs([tmp_path]), QueueOf())}
    done = lines["done"]
    assert (done.algorithm, done.state, done.step, done.steps, done.exit_code) == ("ppo", "done", 60, 60, 0)
    assert (done.metric, done.topology, done.attempt) == ("reward", "local", 1)
    assert done.value == pytest.approx(0.87, abs=0.01)
    assert (lines["failed"].state, lines["failed"].exit_code, lines["failed"].step) == ("failed", 66, 0)
    assert (lines["working"].state, lines["working"].step) == ("running", 400)
    assert [column.header for column in render_list(list(lines.values())).columns][:4] == [
        "run",
        "algorithm",
        "state",
        "step",
    ]


def test_runs_of_the_same_name_are_told_by_their_directories(tmp_path: Path) -> None:
    roots = [MadeRun(tmp_path / name).run.root for name in ("one/sft", "two/sft", "two/ppo")]
    names = list(render_list(list_runs(roots, QueueOf())).columns[0].cells)
    assert sorted(map(str, names)) == sorted([str(roots[0]), str(roots[1]), "ppo"])


def test_a_run_that_went_on_elsewhere_is_where_its_newest_submission_is(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "moved")
    made.begin()
    made.run.record_submission("submission", {"master": 1})
    assert [line.topology for line in list_runs([made.run.root], QueueOf())] == ["local"]
    submit_with(made.run, "later", {"cluster.type": "slurm", "cluster.topology": "array"})
    made.run.record_submission("later", {"master": "7", "workers": "8"})
    (line,) = list_runs([made.run.root], QueueOf(lambda runs: [Queue((seen("master", "running"),))] * len(runs)))
    assert (line.topology, line.jobs["workers"]) == ("array", "8")


def test_slurm_is_asked_once_and_only_about_runs_that_may_go_on(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        made_on_slurm(tmp_path / name).begin()
    made_on_slurm(tmp_path / "over").begin()
    over = made_on_slurm(tmp_path / "over2")
    over.begin()
    over.verdict("done", 0, "step 60 was the last")
    MadeRun(tmp_path / "local").begin()
    asked = []

    def ask(runs):
        asked.append(sorted(run.root.name for run in runs))
        return [Queue((seen("master", "pending", reason="Resources"),)) for _ in runs]

    states = {line.name: line.state for line in list_runs(find_runs([tmp_path]), QueueOf(ask))}
    assert asked == [["a", "b", "c", "over"]]
    assert states["a"] == "waiting for Slurm" and states["over2"] == "done" and states["local"] == "running"


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        yield Path(name)


def test_long_runs_are_listed_by_their_ends(folder: Path) -> None:
    """A run's length costs nothing: twenty times a thousand steps or three thousand."""
    work = []
    for steps in (1000, 3000):
        made = MadeRun(folder / f"{steps}" / "run0")
        made.begin()
        made.steps(0, steps)
        for number in range(1, 20):
            other = MadeRun(folder / f"{steps}" / f"run{number}")
            other.begin()
            other.run.events(0).write_bytes(made.run.events(0).read_bytes())
            other.run.metrics(0).write_bytes(made.run.metrics(0).read_bytes())
            other.run.costs(0).write_bytes(made.run.costs(0).read_bytes())
        lines, calls = calls_in(lambda root=folder / f"{steps}": list_runs(find_runs([root]), QueueOf()))
        assert {line.step for line in lines} == {steps} and {line.state for line in lines} == {"running"}
        work.append(calls)
    assert work[1] < 1.1 * work[0], work

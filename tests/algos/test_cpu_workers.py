"""PPO whose rewards are made on CPU workers of their own: the same run to the bit, whoever dies."""

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chaos import Remains, create_run, finish, outputs, remains, rows_of, started_twice
from support.cluster import alive_of
from support.elastic import assert_nearly_equal, begin_on, finish_on, whole
from support.faults import Strike
from support.hosts import write_task
from support.made_parts import made_in
from support.tiny_ppo import tiny_ppo

from hpcrl.config.reward import RewardConfig
from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.views.resources import resources
from hpcrl.recipes.ppo import PPOExperiment

LONGEST_S = 240.0
REWARD = """
def uneven(response):
    \"\"\"Sums of these are inexact: a mean must not depend on how many workers add them up.\"\"\"
    return response.count("1") / 10 - 0.3 * len(response) + 1 / 3
"""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    (folder / "uneven.py").write_text(REWARD)
    return folder


@pytest.fixture(scope="module")
def plain(task: Path) -> Iterator[RunDirectory]:
    """Model workers score, between their other calls."""
    with tempfile.TemporaryDirectory() as folder:
        run = create_run(Path(folder) / "run", scored_by(task, 0, nodes=1))
        assert finish(run, timeout_s=LONGEST_S) == [0], outputs(run)
        yield run


@pytest.fixture(scope="module")
def expected(plain: RunDirectory) -> Remains:
    return remains(plain)


def scored_by(task: Path, workers: int, nodes: int) -> PPOExperiment:
    """Two model workers on one node or two, and so many CPU workers on each."""
    experiment = tiny_ppo(task, nodes=nodes, workers=2 // nodes)
    return dataclasses.replace(
        experiment, reward=RewardConfig(function=f"{task / 'uneven.py'}:uneven", workers=workers)
    )


def executed(run: RunDirectory, attempt: int = 0) -> dict[int, set[str]]:
    """Rank → the calls that it has executed."""
    made = made_in(run, attempt)
    ranks = {rank for it in made for rank in it.ranks}
    return {rank: {it.call for it in made if rank in it.ranks} for rank in ranks}


def test_rows_of_costs_have_what_the_workers_measured(plain: RunDirectory) -> None:
    rows = RunReader(plain).attempts[0].costs()
    assert {row.step for row in rows} >= {1, 2, 3, 4}
    trained, made, scored = (rows[-1].calls[call] for call in ("actor_train", "actor_gen", "rew_inf"))
    for cost in (trained, made):
        assert cost.figures is not None and cost.slowest is not None
        assert cost.figures.flops > cost.slowest.flops > 0 and cost.figures.longest == cost.slowest.longest
        assert cost.figures.peak >= cost.figures.held > 2**20
    assert trained.figures.seconds.backward > 0 and trained.figures.sent > 0 < trained.figures.seconds.collective
    assert made.figures.rounds > 0 < made.figures.seconds.decode
    assert scored.figures is not None and scored.figures.flops == 0 < scored.figures.seconds.execute
    ready = next(row for row in rows_of(plain.events(0)) if row["event"] == "ready")
    assert sum(ready["hardware"].values()) == 2 and ready["speeds"]["fp32"] > 1e8


def test_the_agent_has_looked_at_its_workers(plain: RunDirectory) -> None:
    view = resources(RunReader(plain))
    [node], workers = view.nodes, view.workers
    assert node.free is not None and node.free > 0
    assert {worker.worker for worker in workers} == {0, 1} and min(worker.rss for worker in workers) > 2**20


def test_scores_of_cpu_workers_on_two_nodes_make_the_same_run(tmp_path: Path, task: Path, expected: Remains) -> None:
    run = create_run(tmp_path / "run", scored_by(task, 2, nodes=2))
    assert finish(run, timeout_s=LONGEST_S, nodes=2) == [0], outputs(run)
    assert remains(run) == expected
    calls = executed(run)
    assert calls.keys() == set(range(6))
    assert all("rew_inf" not in calls[rank] and "actor_gen" in calls[rank] for rank in (0, 1))
    assert all(calls[rank] <= {"rew_inf", "eval_rew"} and "rew_inf" in calls[rank] for rank in (2, 3, 4, 5))


def test_a_cpu_worker_that_is_killed_while_it_scores_changes_no_bit(
    tmp_path: Path, task: Path, expected: Remains
) -> None:
    run = create_run(tmp_path / "run", scored_by(task, 1, nodes=1))
    strike = Strike(tmp_path, "kill", "worker-2", "worker.executed", "KILL", nth=2)
    codes = finish(run, strike, timeout_s=LONGEST_S)
    assert strike.marker.exists() and codes[-1] == 0, outputs(run)
    [reason] = [row["reason"] for row in rows_of(run.events(0)) if row["event"] == "ending"]
    assert reason.startswith("worker-2: ") and "SIGKILL" in reason
    assert remains(run) == expected
    assert started_twice(run) == []
    assert alive_of(run.root) == []


@pytest.mark.slow
def test_a_run_goes_on_with_cpu_workers_where_it_had_none(tmp_path: Path, task: Path, plain: RunDirectory) -> None:
    run = create_run(tmp_path / "run", scored_by(task, 0, nodes=1))
    strike = Strike(tmp_path, "kill", "master", "manifest.published", "KILL", "all")
    jobs = begin_on(run, "first", scored_by(task, 0, nodes=1), strike)
    jobs.wait_for("master", LONGEST_S)
    jobs.kill_all()
    finish_on(run, scored_by(task, 1, nodes=1), timeout_s=LONGEST_S)
    assert "rew_inf" in executed(run, run.numbers()[-1])[2]
    assert_nearly_equal(run, whole(plain), rtol=0.0, atol=0.0)

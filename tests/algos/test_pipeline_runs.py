"""Runs whose models are cut into stages: what one worker computes, and the same bits after kills."""

from pathlib import Path

import numpy as np
import pytest
from support.chaos import create_run, remains, started_twice
from support.cluster import alive_of
from support.elastic import begin_on, finish_on
from support.faults import Strike
from support.layout_runs import Undisturbed, check_killed, check_learnt, parameters, sft, undisturbed_runs


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return undisturbed_runs(tmp_path_factory)


@pytest.mark.parametrize(
    ("algorithm", "layout", "workers"),
    [
        ("sft", "d1t1p2", 2),
        pytest.param("ppo", "d1t1p2", 2, marks=pytest.mark.slow),
        pytest.param("ppo", "d2t1p2", 4, marks=pytest.mark.slow),
    ],
)
def test_stages_learn_what_one_worker_learns(
    undisturbed: Undisturbed, algorithm: str, layout: str, workers: int
) -> None:
    check_learnt(undisturbed, algorithm, layout, workers)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sft", "ppo"])
def test_a_run_whose_stages_are_killed_ends_with_the_same_bits(
    undisturbed: Undisturbed, tmp_path: Path, algorithm: str
) -> None:
    check_killed(undisturbed, tmp_path, algorithm, "d1t1p2", 2)


@pytest.mark.parametrize(("before", "after"), [("d1t1p2", "d2"), ("d1t2p1", "d1t1p2")])
def test_a_run_that_goes_on_in_another_layout_learns_what_one_worker_learns(
    undisturbed: Undisturbed, tmp_path: Path, before: str, after: str
) -> None:
    """Killed as its first checkpoint is published, whose line is missing: what came before is replayed elsewhere."""
    began, goes_on = (sft(undisturbed.task, layout, 2) for layout in (before, after))
    run = create_run(tmp_path / "run", began)
    jobs = begin_on(run, "first", began, Strike(tmp_path, "kill", "master", "manifest.published", "KILL", "all", 1))
    jobs.wait_for("master", 60)
    jobs.kill_all()
    finish_on(run, goes_on)
    expected = undisturbed("sft", "d1", 1)
    assert remains(run).ids == remains(expected).ids
    reference = parameters(expected)
    for name, array in parameters(run).items():
        np.testing.assert_allclose(array, reference[name], rtol=1e-9, atol=1e-11, err_msg=name)
    assert started_twice(run) == [] and alive_of(run.root) == []

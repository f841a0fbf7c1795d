"""Runs whose models are cut over tensor ranks: what one worker computes, and the same bits after kills."""

from pathlib import Path

import pytest
from support.layout_runs import Undisturbed, check_killed, check_learnt, undisturbed_runs


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return undisturbed_runs(tmp_path_factory)


@pytest.mark.parametrize(
    ("algorithm", "layout", "workers"),
    [
        ("sft", "d1t2", 2),
        pytest.param("ppo", "d1t2", 2, marks=pytest.mark.slow),
        pytest.param("ppo", "d2t2", 4, marks=pytest.mark.slow),
        pytest.param("ppo", "d1t2p2", 4, marks=pytest.mark.slow),
        pytest.param("sft", "d1t4", 4, marks=pytest.mark.slow),
    ],
)
def test_tensor_ranks_learn_what_one_worker_learns(
    undisturbed: Undisturbed, algorithm: str, layout: str, workers: int
) -> None:
    check_learnt(undisturbed, algorithm, layout, workers)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sft", "ppo"])
def test_a_run_whose_tensor_ranks_are_killed_ends_with_the_same_bits(
    undisturbed: Undisturbed, tmp_path: Path, algorithm: str
) -> None:
    check_killed(undisturbed, tmp_path, algorithm, "d1t2", 2)

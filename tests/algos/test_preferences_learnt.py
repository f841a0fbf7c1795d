"""Preferences are learnt: of held-out pairs nearly all are put in the right order after seconds of one core."""

from pathlib import Path

import pytest
from support.vowels import held_out_accuracy, preferring, write_vowels

SEEDS = [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=SEEDS)
def seed(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    folder = tmp_path_factory.mktemp("vowels")
    write_vowels(folder, seed)
    return folder


def test_a_reward_model_learns_that_more_vowels_win(folder: Path, seed: int) -> None:
    assert held_out_accuracy(preferring(folder, "reward_model", seed, lr=1e-3), steps=40) >= 0.95


@pytest.mark.parametrize("dpo", [{}, {"loss": "ipo"}, {"label_smoothing": 0.1}], ids=["dpo", "ipo", "cdpo"])
def test_a_policy_learns_that_more_vowels_win(folder: Path, seed: int, dpo: dict[str, str]) -> None:
    assert held_out_accuracy(preferring(folder, "dpo", seed, lr=1e-3, dpo=dpo), steps=40) >= 0.9

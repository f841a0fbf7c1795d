"""Preferences are learnt: of held-out pairs nearly all are put in the right order after seconds of one core."""

from pathlib import Path

import pytest
from support.vowels import held_out_accuracy, preferring, write_vowels


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vowels")
    write_vowels(folder, seed=1)
    return folder


def test_a_reward_model_learns_that_more_vowels_win(folder: Path) -> None:
    assert held_out_accuracy(preferring(folder, "reward_model", seed=1, lr=1e-3), steps=40) >= 0.95


@pytest.mark.parametrize("dpo", [{}, {"loss": "ipo"}], ids=["dpo", "ipo"])
def test_a_policy_learns_that_more_vowels_win(folder: Path, dpo: dict[str, str]) -> None:
    assert held_out_accuracy(preferring(folder, "dpo", seed=1, lr=1e-3, dpo=dpo), steps=40) >= 0.9

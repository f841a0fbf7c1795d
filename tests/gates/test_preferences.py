"""Preferences are learnt: of held-out pairs nearly all are put in the right order after seconds of one core."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.learning import Found, Gate, keep
from support.vowels import held_out_accuracy, preferring, write_vowels

pytestmark = pytest.mark.slow
SEEDS = [1, 2, 3]
STEPS = 40
TASK = "more vowels win: share of held-out pairs in the right order"
GATES: Mapping[str, tuple[str, Mapping[str, Any], float]] = {
    "reward-model": ("reward_model", {}, 0.95),
    "dpo": ("dpo", {"dpo": {}}, 0.9),
    "ipo": ("dpo", {"dpo": {"loss": "ipo"}}, 0.9),
    "cdpo": ("dpo", {"dpo": {"label_smoothing": 0.1}}, 0.9),
}
"""By name: the algorithm, its settings, and the share that has to be right."""


@pytest.fixture(scope="module", params=SEEDS)
def seed(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    folder = tmp_path_factory.mktemp("vowels")
    write_vowels(folder, seed)
    return folder


@pytest.mark.parametrize("gate", GATES)
def test_a_model_learns_that_more_vowels_win(gate: str, folder: Path, seed: int) -> None:
    algorithm, sections, least = GATES[gate]
    experiment = preferring(folder, algorithm, seed, lr=1e-3, **sections)
    before, after = (held_out_accuracy(experiment, steps) for steps in (0, STEPS))
    learnt = Found(seed=seed, before=before, after=after, steps=STEPS)
    keep(Gate(gate=gate, algorithm=algorithm, task=TASK, goal=f"≥ {least:.0%} in {STEPS} steps"), learnt)
    assert after >= least

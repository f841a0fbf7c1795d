"""A reward model puts as many pairs in order by itself as it did in the evaluation of the run that trained it."""

from pathlib import Path

import pytest
from support.hosts import run_of
from support.vowels import HELD_OUT, held_out_accuracy, preferring, write_vowels

from hpcrl.recipes.algorithm import experiment_from

BATCH = 150


def test_an_exported_reward_model_has_the_accuracy_that_its_run_has_reported(tmp_path: Path) -> None:
    write_vowels(tmp_path, seed=1)
    judge = tmp_path / "judge"
    judge.mkdir()
    trained = preferring(tmp_path, "reward_model", 1, lr=1e-3)
    reported = held_out_accuracy(trained, steps=5, export=("reward_model", judge))
    values = {
        "algorithm": "evaluate_pairs",
        "data": {"train": str(tmp_path / "held_out.jsonl"), "batch_size": BATCH},
        "reward_model": {"path": str(judge)},
        "control": {"epochs": 1},
    }
    with run_of(experiment_from(values)) as conductor:
        steps = [conductor.step(step) for step in range(1, -(-HELD_OUT // BATCH) + 1)]
    found = [step.outcomes["eval_pairs"].stats["accuracy"] for step in steps]
    assert sum(pairs for _, pairs in found) == HELD_OUT
    assert sum(right for right, _ in found) / HELD_OUT == pytest.approx(reported, abs=1e-12)
    assert 0.5 < reported < 1.0
    assert all(len(step.rows.rows("chosen_scores")) == len(step.rows.ids) for step in steps)

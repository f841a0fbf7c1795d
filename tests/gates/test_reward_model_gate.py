"""A policy learns from a reward model: its score rises, and an adaptive weight holds the KL to the reference near its
target, whatever the weight was at first."""

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from support.hosts import run_of
from support.learning import Found, Gate, keep
from support.vowels import held_out_accuracy, preferring, write_vowels

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.recipes.algorithm import experiment_from

STEPS, LAST = 60, 20
TARGET = 0.2
GAINED = 1.0
"""By so much the mean score of the last steps is above that of the first: as much as half a vowel more."""


def judged(folder: Path, seed: int) -> ExperimentConfig:
    """PPO against the model in judge/, from a policy that says any letters."""
    path, judge = str(folder / "model"), str(folder / "judge")
    values: dict[str, Any] = {
        "algorithm": "ppo",
        "seed": seed,
        "control": {"steps": STEPS},
        "data": {"train": str(folder / "pairs.jsonl"), "batch_size": 64},
        "actor": {"path": path, "optimizer": {"lr": 1e-3, "weight_decay": 0.0}},
        "critic": {"path": judge, "optimizer": {"lr": 1e-3, "weight_decay": 0.0}},
        "reference": {"path": path},
        "reward": {"components": {"judge": {"role": "reward_model"}}},
        "reward_model": {"path": judge},
        "generation": {"max_new_tokens": 8},
        "ppo": {
            "minibatches": 2,
            "kl": {"mode": "reward", "coef": 0.5, "adaptive": True, "target": TARGET, "horizon": 100},
        },
    }
    made: ExperimentConfig = experiment_from(values)
    return made


def learnt_from_a_reward_model(folder: Path, seed: int) -> tuple[float, list[float], list[float]]:
    """The reward model's accuracy on held-out pairs; then the policy's mean score and KL per token, step by step."""
    write_vowels(folder, seed)
    (folder / "judge").mkdir()
    trained = preferring(folder, "reward_model", seed, lr=1e-3)
    accuracy = held_out_accuracy(trained, steps=40, export=("reward_model", folder / "judge"))
    with run_of(judged(folder, seed)) as conductor:
        steps = [conductor.step(step) for step in range(1, STEPS + 1)]
    scores, kls = ([done.mean(name) for done in steps] for name in ("rew_inf/judge", "actor_train/kl"))
    return accuracy, scores, kls


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_policy_learns_what_a_reward_model_likes_and_stays_near_its_reference(tmp_path: Path, seed: int) -> None:
    accuracy, scores, kls = learnt_from_a_reward_model(tmp_path, seed)
    assert accuracy >= 0.95
    after, kl = fmean(scores[-LAST:]), fmean(kls[-LAST:])
    goal = f"a score {GAINED:g} higher, KL per token within {TARGET / 2:g} and {2 * TARGET:g}, in {STEPS} steps"
    task = "more vowels win: mean score by the reward model"
    learnt = Found(seed=seed, before=scores[0], after=after, steps=STEPS)
    keep(Gate(gate="ppo-reward-model", algorithm="ppo", task=task, goal=goal), learnt)
    assert after >= scores[0] + GAINED
    assert TARGET / 2 <= kl <= 2 * TARGET, "the adaptive weight holds it"
    assert max(kls) <= 5 * TARGET

"""Advantages and the weight of the KL as a script gets them."""

import math
from dataclasses import replace

import numpy as np
import pytest

from hpcrl.algos.policy import KLCoefficient
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.kl import KLConfig
from hpcrl.controller.advantages import adapt_kl, advantages
from hpcrl.errors import UserCodeError
from hpcrl.recipes.grpo import GRPOConfig
from hpcrl.recipes.ppo import PPOConfig

PLAIN = PPOConfig(whiten_advantages=False, gae_lambda=0.9, discount=0.5)
ROWS = {
    "prompts": [np.arange(2, dtype=np.int32), np.arange(3, dtype=np.int32)],
    "responses": [np.array([5, 6], np.int32), np.array([7], np.int32)],
    "finished": [np.array([True]), np.array([True])],
    "logprobs": [np.array([-1.0, -2.0], np.float32), np.array([-1.0], np.float32)],
    "rewards": [np.array([1.0], np.float32), np.array([2.0], np.float32)],
    "token_rewards": [np.zeros(0, np.float32), np.zeros(0, np.float32)],
    "values": [np.array([0.25, 0.5], np.float32), np.array([1.0], np.float32)],
}


def test_they_are_generalised_advantage_estimates_of_each_response() -> None:
    made = advantages(ROWS, PLAIN, 0.0)
    last = 1.0 - 0.5
    assert [row.tolist() for row in made["advantages"]] == [[0.5 * 0.5 - 0.25 + 0.5 * 0.9 * last, last], [1.0]]
    assert [row.tolist() for row in made["returns"]] == [[0.25 + 0.225, 1.0], [2.0]]
    assert all(row.dtype == np.float64 for rows in made.values() for row in rows)


def test_a_penalty_of_long_responses_counts_from_the_longest() -> None:
    overlong = replace(PLAIN, overlong_buffer=1)
    with pytest.raises(UserCodeError, match=r"overlong_buffer = 1 counts from generation\.max_new_tokens") as error:
        advantages(ROWS, overlong, 0.0)
    assert error.value.advice == ("Give it e.generation as a further argument.",)
    made = advantages(ROWS, overlong, 0.0, GenerationConfig(max_new_tokens=2))
    assert made["advantages"][0][-1] == -0.5 and made["advantages"][1] == [1.0]


def test_an_algorithm_without_a_critic_has_none_for_scripts() -> None:
    with pytest.raises(UserCodeError, match="GRPOConfig has none that a script computes"):
        advantages(ROWS, GRPOConfig(), 0.0)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("mean", [0.0, 0.09, 0.1, 5.0])
def test_the_weight_moves_as_that_of_the_roles_does(adaptive: bool, mean: float) -> None:
    kl = KLConfig(mode="reward", coef=0.1, adaptive=adaptive, target=0.1, horizon=100.0)
    own = KLCoefficient(kl)
    own.follow(kl, mean, 8, None)
    assert adapt_kl(kl, 0.1, mean, 8) == own.value and math.isfinite(own.value)
    assert adapt_kl(kl, 0.1, mean, 0) == 0.1
    assert adapt_kl(kl, 0.1, mean, math.nan) == adapt_kl(kl, 0.1, math.nan, 8) == 0.1


def test_the_samples_that_count_may_be_a_share_of_all() -> None:
    kl = KLConfig(mode="reward", coef=0.1, adaptive=True, target=0.1, horizon=100.0)
    for drawn in range(1, 100):
        for counted in range(drawn + 1):
            assert adapt_kl(kl, 0.1, 5.0, counted / drawn * drawn) == adapt_kl(kl, 0.1, 5.0, counted)

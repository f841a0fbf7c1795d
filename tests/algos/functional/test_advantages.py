"""Packed advantages and whitening against closed numbers and the plain recursion."""

import itertools

import pytest
import torch
from support.pool import everyone, gloo_pool

from hpcrl.algos.functional.advantages import generalised_advantages, whiten


def bounds(lengths):
    return torch.tensor([0, *itertools.accumulate(lengths)])


def one_at_a_time(rewards, values, lengths, discount, gae_lambda):
    """The recursion as it is written in the paper."""
    advantages, start = [], 0
    for length in lengths:
        after_value, after_advantage, backwards = 0.0, 0.0, []
        for t in reversed(range(start, start + length)):
            delta = float(rewards[t]) + discount * after_value - float(values[t])
            after_advantage = delta + discount * gae_lambda * after_advantage
            after_value = float(values[t])
            backwards.append(after_advantage)
        advantages += backwards[::-1]
        start += length
    return torch.tensor(advantages, dtype=torch.float64)


@pytest.mark.parametrize(
    ("rewards", "values", "discount", "gae_lambda", "advantages", "returns"),
    [
        ([1, 2, 3], [0.1, 0.2, 0.3], 0.9, 0.8, [3.97008, 4.014, 2.7], [4.07008, 4.214, 3.0]),
        ([0, 0, 0, 1], [0.5] * 4, 1.0, 1.0, [0.5] * 4, [1.0] * 4),
        ([-0.1, 0.2], [0.3, -0.4], 1.0, 0.95, [-0.23, 0.6], [0.07, 0.2]),
    ],
)
def test_advantages_equal_closed_numbers(rewards, values, discount, gae_lambda, advantages, returns):
    got = generalised_advantages(
        torch.tensor(rewards, dtype=torch.float64),
        torch.tensor(values, dtype=torch.float64),
        bounds([len(rewards)]),
        discount,
        gae_lambda,
    )
    torch.testing.assert_close(got[0], torch.tensor(advantages, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(got[1], torch.tensor(returns, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("discount", "gae_lambda"), [(1.0, 1.0), (0.9, 0.5), (1.0, 0.95), (0.99, 0.0)])
def test_packed_advantages_equal_the_recursion(discount, gae_lambda):
    draw = torch.Generator().manual_seed(1)
    lengths = [1, 2, 33, 0, 7, 64, 1, 129]
    rewards = torch.randn(sum(lengths), generator=draw, dtype=torch.float64)
    values = torch.randn(sum(lengths), generator=draw, dtype=torch.float64)
    advantages, returns = generalised_advantages(rewards, values, bounds(lengths), discount, gae_lambda)
    expected = one_at_a_time(rewards, values, lengths, discount, gae_lambda)
    torch.testing.assert_close(advantages, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(returns, expected + values, rtol=1e-12, atol=1e-12)


def test_neighbours_change_no_bit_of_an_advantage():
    draw = torch.Generator().manual_seed(2)
    lengths = [5, 40, 3, 17]
    rewards = torch.randn(sum(lengths), generator=draw)
    values = torch.randn(sum(lengths), generator=draw)
    together, _ = generalised_advantages(rewards, values, bounds(lengths), 0.97, 0.9)
    alone = [
        generalised_advantages(r, v, bounds([len(r)]), 0.97, 0.9)[0]
        for r, v in zip(rewards.split(lengths), values.split(lengths), strict=True)
    ]
    assert torch.equal(together, torch.cat(alone))


def test_undiscounted_return_is_the_sum_of_future_rewards():
    rewards = torch.tensor([1.0, -2.0, 4.0, 0.5, 3.0], dtype=torch.float64)
    _, returns = generalised_advantages(rewards, torch.randn(5).double(), bounds([3, 2]), 1.0, 1.0)
    torch.testing.assert_close(returns, torch.tensor([3.0, 2.0, 4.0, 3.5, 3.0], dtype=torch.float64))


def test_inputs_are_not_modified():
    rewards, values = torch.ones(4), torch.full((4,), 0.5)
    generalised_advantages(rewards, values, bounds([4]), 0.9, 0.9)
    assert torch.equal(rewards, torch.ones(4))
    assert torch.equal(values, torch.full((4,), 0.5))


def test_no_tokens_have_no_advantages():
    advantages, returns = generalised_advantages(torch.zeros(0), torch.zeros(0), bounds([]), 1.0, 1.0)
    assert len(advantages) == len(returns) == 0


def test_whitened_values_have_mean_zero_and_bessel_variance_one():
    whitened = whiten(torch.randn(1000) * 7 + 3)
    assert whitened.dtype == torch.float64
    assert abs(float(whitened.mean())) < 1e-12
    assert float(whitened.var()) == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize("values", [[], [3.0], [2.0, 2.0, 2.0]])
def test_values_without_spread_are_whitened_to_zero(values):
    assert torch.equal(whiten(torch.tensor(values)), torch.zeros(len(values), dtype=torch.float64))


def test_whitening_over_ranks_equals_whitening_together():
    values = torch.randn(101, dtype=torch.float64) * 3 + 100
    with gloo_pool(2) as pool:
        parts = pool.run(whiten_half, values)
    torch.testing.assert_close(torch.cat(parts), whiten(values), rtol=1e-12, atol=1e-12)


def whiten_half(context, values):
    half = values.tensor_split(2)[context.rank]
    return whiten(half, everyone(context).total)

"""PPO's losses per token against closed numbers, and aggregation against a plain mean for any split."""

import math
import random

import pytest
import torch

from hpcrl.algos.functional.losses import (
    AGGREGATIONS,
    Denominators,
    clipped_loss,
    token_ratio,
    token_weights,
    value_loss,
)

CONSTANT = 17.0
SHARES = [1.0, 0.5, 0.0, 0.9]


def test_without_a_change_of_policy_the_loss_is_minus_the_advantage():
    log_probs, advantages = -torch.rand(9), torch.randn(9)
    terms = clipped_loss(token_ratio(log_probs, log_probs), advantages, 0.2, 0.2)
    torch.testing.assert_close(terms.loss, -advantages)
    assert not terms.clipped.any()


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual_clip", "loss", "clipped", "has_gradient"),
    [
        (1.1, 2.0, None, -2.2, False, True),
        (1.5, 2.0, None, -2.4, True, False),
        (0.5, 2.0, None, -1.0, False, True),
        (0.5, -2.0, None, 1.6, True, False),
        (1.5, -2.0, None, 3.0, False, True),
        (5.0, -2.0, None, 10.0, False, True),
        (5.0, -2.0, 3.0, 6.0, False, False),
        (5.0, 2.0, 3.0, -2.4, True, False),
    ],
)
def test_policy_loss_equals_closed_numbers(ratio, advantage, dual_clip, loss, clipped, has_gradient):
    log_probs = torch.tensor([ratio], dtype=torch.float64).log().requires_grad_()
    advantages = torch.tensor([advantage], dtype=torch.float64)
    terms = clipped_loss(token_ratio(log_probs, torch.zeros(1).double()), advantages, 0.2, 0.2, dual_clip)
    terms.loss.sum().backward()
    assert terms.loss.item() == pytest.approx(loss, rel=1e-12)
    assert terms.ratio.item() == pytest.approx(ratio, rel=1e-12)
    assert terms.clipped.item() is clipped
    assert log_probs.grad.item() == (pytest.approx(-advantage * ratio) if has_gradient else 0.0)


def test_an_absurd_ratio_stays_finite():
    terms = clipped_loss(token_ratio(torch.tensor([0.0]), torch.tensor([-500.0])), torch.tensor([-1.0]), 0.2, 0.2)
    assert torch.isfinite(terms.loss).all()


def test_within_the_clip_range_the_value_loss_is_half_the_squared_error():
    values, old, returns = torch.tensor([0.1, -0.1]), torch.zeros(2), torch.tensor([1.0, 2.0])
    loss, clipped = value_loss(values, old, returns, clip=0.2)
    torch.testing.assert_close(loss, (values - returns).square() / 2)
    assert not clipped.any()


def test_a_value_beyond_the_clip_range_gets_the_larger_error():
    loss, clipped = value_loss(torch.tensor([0.9, 0.9]), torch.zeros(2), torch.tensor([1.0, -1.0]), clip=0.2)
    torch.testing.assert_close(loss, torch.tensor([0.8**2 / 2, 1.9**2 / 2]))
    assert clipped.tolist() == [True, False]
    unclipped, _ = value_loss(torch.tensor([0.9]), torch.zeros(1), torch.tensor([1.0]), clip=None)
    torch.testing.assert_close(unclipped, torch.tensor([0.005]))


def plain_mean(aggregation, rows):
    """Each aggregation as a sentence, over a list of rows of token losses; what does not count is not a number."""
    rows = [kept for row in rows if (kept := [x for x in row if not math.isnan(x)])]
    if aggregation == "token-mean":
        return sum(map(sum, rows)) / sum(map(len, rows))
    if aggregation == "token-sum":
        return sum(map(sum, rows))
    of_row = {"seq-mean-token-mean": lambda row: sum(row) / len(row), "seq-mean-token-sum": sum}.get(
        aggregation, lambda row: sum(row) / CONSTANT
    )
    return sum(map(of_row, rows)) / len(rows)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_any_split_adds_up_to_the_same_mean_over_what_counts(aggregation):
    draw = random.Random(3)
    rows = [[draw.gauss(0, 1) for _ in range(draw.randint(1, 30))] for _ in range(20)]
    rows = [
        [x if draw.random() < share else math.nan for x in row] for row, share in zip(rows, SHARES * 5, strict=True)
    ]
    kept = [sum(not math.isnan(x) for x in row) for row in rows]
    whole = Denominators(tokens=sum(kept), sequences=sum(count > 0 for count in kept), constant=CONSTANT)
    assert 0 in kept
    for parts in (1, 2, 7, 20):
        draw.shuffle(rows)
        total = 0.0
        for part in (rows[i::parts] for i in range(parts)):
            bounds = torch.tensor([0, *(len(row) for row in part)]).cumsum(0)
            numbers = torch.tensor([x for row in part for x in row], dtype=torch.float64)
            weights = token_weights(aggregation, ~numbers.isnan(), bounds, whole)
            total += float((weights * numbers.nan_to_num()).sum())
        assert total == pytest.approx(plain_mean(aggregation, rows), rel=1e-12)

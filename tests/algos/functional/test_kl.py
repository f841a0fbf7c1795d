"""KL estimators against the exact divergence, and the adaptive coefficient against closed numbers."""

import math

import pytest
import torch

from hpcrl.algos.functional.kl import adapted_kl_coef, token_kl
from hpcrl.algos.functional.sequences import sequence_means


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("k1", 0.5), ("k2", 0.125), ("k3", math.exp(-0.5) - 1 + 0.5), ("abs", 0.5)],
)
def test_estimators_equal_their_formulas(estimator, expected):
    got = token_kl(estimator, torch.tensor([-1.0]).double(), torch.tensor([-1.5]).double())
    assert float(got) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_unbiased_estimators_average_to_the_divergence_with_its_sign(estimator):
    """Catches a KL of the wrong sign: over samples of the policy the mean is KL(policy ‖ reference) > 0."""
    policy = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    reference = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)
    exact = float((policy * (policy / reference).log()).sum())
    mean = float((policy * token_kl(estimator, policy.log(), reference.log())).sum())
    assert mean == pytest.approx(exact, rel=1e-12)
    assert mean > 0


def test_k3_alone_is_bounded():
    far = torch.tensor([-1000.0]), torch.tensor([0.0])
    assert token_kl("k1", *far).item() == -1000.0
    assert token_kl("abs", *far).item() == 1000.0
    assert token_kl("k3", *far).item() == 10.0
    assert token_kl("k3", torch.tensor([0.0]), torch.tensor([-1000.0])).item() == 10.0


def test_sequences_count_alike_whatever_their_length():
    kl, mask = torch.tensor([1.0, 2.0, 3.0, 4.0, 9.0, 6.0]), torch.tensor([1, 1, 1, 1, 0, 1]).bool()
    assert sequence_means(kl, mask, torch.tensor([0, 5, 5, 6])).tolist() == [2.5, 0.0, 6.0]


@pytest.mark.parametrize(
    ("kl", "sequences", "expected"), [(12.0, 256, 0.100512), (3.0, 256, 0.099488), (6.6, 100, 0.1001)]
)
def test_adaptive_coefficient_equals_closed_numbers(kl, sequences, expected):
    assert adapted_kl_coef(0.1, kl, target=6.0, horizon=1e4, sequences=sequences, error_limit=0.2) == pytest.approx(
        expected, rel=1e-12
    )


def test_a_kl_above_the_target_raises_the_coefficient():
    assert adapted_kl_coef(0.1, 6.01, 6.0, 1e4, 8, 0.2) > 0.1 > adapted_kl_coef(0.1, 5.99, 6.0, 1e4, 8, 0.2)

"""The value normaliser against plain moments, and its state."""

import json

import pytest
import torch

from hpcrl.algos.functional.normaliser import Normaliser


def test_without_decay_the_moments_are_those_of_all_numbers():
    batches = [torch.randn(n) * 3 + 5 for n in (10, 1, 200)]
    normaliser = Normaliser(decay=1.0)
    for batch in batches:
        normaliser.update(batch)
    together = torch.cat(batches).double()
    assert normaliser.mean == pytest.approx(float(together.mean()), rel=1e-12)
    assert normaliser.deviation == pytest.approx(float(together.var(unbiased=False).sqrt()), rel=1e-9)


def test_a_first_batch_is_not_drawn_to_zero():
    normaliser = Normaliser(decay=0.999)
    normaliser.update(torch.full((4,), 10.0))
    assert normaliser.mean == pytest.approx(10.0)


def test_with_decay_the_moments_equal_the_debiased_exponential_mean():
    decay, mean, square, debias = 0.9, 0.0, 0.0, 0.0
    normaliser = Normaliser(decay)
    for i in range(20):
        batch = torch.randn(16).double() + i
        normaliser.update(batch)
        mean = decay * mean + (1 - decay) * float(batch.mean())
        square = decay * square + (1 - decay) * float(batch.square().mean())
        debias = decay * debias + (1 - decay)
    assert normaliser.mean == pytest.approx(mean / debias, rel=1e-12)
    assert normaliser.deviation**2 == pytest.approx(square / debias - (mean / debias) ** 2, rel=1e-9)


def test_normalised_values_come_back_and_outliers_are_held():
    normaliser = Normaliser(decay=1.0)
    normaliser.update(torch.tensor([1.0, 2.0, 3.0]))
    values = torch.tensor([0.0, 2.5, 4.0], dtype=torch.float64)
    torch.testing.assert_close(normaliser.denormalise(normaliser.normalise(values)), values)
    assert normaliser.normalise(torch.tensor([1e6])).item() == 5.0
    assert normaliser.scale(torch.tensor([1e6])).item() > 5.0


def test_before_the_first_batch_nothing_is_changed():
    values = torch.tensor([-1.0, 2.0])
    assert torch.equal(Normaliser(0.9).denormalise(Normaliser(0.9).normalise(values)), values)


def test_constant_values_do_not_blow_up():
    normaliser = Normaliser(1.0)
    normaliser.update(torch.full((8,), 3.0))
    assert normaliser.deviation == pytest.approx(0.1)


def test_state_comes_back_from_json_bit_for_bit():
    normaliser, other = Normaliser(0.99), Normaliser(0.99)
    for _ in range(5):
        normaliser.update(torch.randn(7))
    other.load_state(json.loads(json.dumps(normaliser.state())))
    assert (other.mean, other.deviation) == (normaliser.mean, normaliser.deviation)

"""Sums over sequences against slices."""

import pytest
import torch

from hpcrl.algos.functional.sequences import sequence_sums


@pytest.mark.parametrize("lengths", [[3, 0, 1, 4], [0], []])
def test_sums_and_their_gradient_equal_those_of_slices_in_float64(lengths):
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    numbers = torch.randn(sum(lengths), dtype=torch.float64, requires_grad=True)
    sums = sequence_sums(numbers, bounds)
    assert sums.dtype == torch.float64 and sums.shape == (len(lengths),)
    expected = [float(part.sum()) for part in numbers.detach().split(lengths)] if lengths else []
    assert sums.tolist() == pytest.approx(expected, rel=1e-15)
    (sums * torch.arange(1, len(lengths) + 1)).sum().backward()
    assert numbers.grad.tolist() == [row + 1.0 for row, length in enumerate(lengths) for _ in range(length)]


def test_a_sequences_sum_does_not_depend_on_its_neighbours():
    numbers = torch.randn(1000)
    alone = sequence_sums(numbers[300:700], torch.tensor([0, 400]))
    assert torch.equal(alone, sequence_sums(numbers, torch.tensor([0, 300, 700, 1000]))[1:2])

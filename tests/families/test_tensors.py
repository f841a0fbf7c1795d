"""Numbers as files store them, against torch."""

import numpy as np
import pytest
import torch

from hpcrl.families.tensors import rounded


def test_numbers_are_rounded_to_bf16_as_torch_rounds_them() -> None:
    rng = np.random.default_rng(1)
    bits = np.concatenate(
        [rng.integers(0, 2**32, 200_000, dtype=np.uint32), np.arange(0x7F7F0000, 0x7F810000, 7, np.uint32)]
    )
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 1e-45, 1.00390625, 1.01171875], np.float32)
    numbers = np.concatenate([bits.view(np.float32), edges])
    expected = torch.from_numpy(numbers).to(torch.bfloat16)
    found = torch.from_numpy(rounded(numbers, "bfloat16")).view(torch.bfloat16)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.view(torch.int16)[~found.isnan()], expected.view(torch.int16)[~expected.isnan()])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_other_types_are_numpys(dtype: str) -> None:
    numbers = np.random.default_rng(2).standard_normal(100)
    assert np.array_equal(rounded(numbers, dtype), numbers.astype(dtype))


def test_bit_patterns_of_bf16_stay() -> None:
    bits = np.array([1, 2, 0x7FC1], np.uint16)
    assert rounded(bits, "bfloat16") is bits

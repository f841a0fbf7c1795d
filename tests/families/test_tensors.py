"""Numbers as files store them, against torch."""

import numpy as np
import pytest
import torch

from hpcrl.families import tensors
from hpcrl.families.family import Piece
from hpcrl.families.tensors import PlacedPiece, rounded


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


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_tensor_in_blocks_is_the_tensor(monkeypatch: pytest.MonkeyPatch, paired: bool, transposed: bool) -> None:
    whole = np.random.default_rng(3).standard_normal((40, 96) if transposed else (96, 40)).astype(np.float32)
    placed = PlacedPiece(Piece("w", 96, paired=paired, transposed=transposed), slice(None))
    expected = placed.stored(whole, 8)
    monkeypatch.setattr(tensors, "_BLOCK_BYTES", 10 * 40 * 4)
    blocks = [*placed.blocks(whole, 8)]
    assert len(blocks) >= 9 and all(block.flags.c_contiguous for block in blocks)
    assert np.array_equal(np.concatenate(blocks), expected)
    assert expected.shape == (96, 40) and (np.array_equal(expected, whole.T if transposed else whole)) == (not paired)

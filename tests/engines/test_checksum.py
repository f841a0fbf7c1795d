"""The checksum over slices is that of the whole, and notices what matters."""

import itertools

import pytest
import torch

from hpcrl.engines.checksum import MASK, checksum, signed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_slices_add_up_to_the_whole(dtype):
    whole = torch.randn(200_003).to(dtype)
    cuts = [0, 1, 77_777, 150_000, len(whole)]
    parts = [checksum(whole[a:b], a) for a, b in itertools.pairwise(cuts)]
    assert sum(parts) & MASK == checksum(whole, 0)


def test_one_bit_a_swap_and_a_sign_of_zero_are_noticed():
    whole = torch.arange(10.0)
    swapped, nudged, negative = whole.clone(), whole.clone(), whole.clone()
    swapped[[3, 4]] = whole[[4, 3]]
    nudged[5] = torch.nextafter(whole[5], torch.tensor(9.0))
    negative[0] = -0.0
    assert len({checksum(x, 0) for x in (whole, swapped, nudged, negative)}) == 4
    assert checksum(whole, 0) == checksum(whole.clone(), 0)


@pytest.mark.parametrize("number", [0, 1, 2**63 - 1, 2**63, MASK])
def test_signed_keeps_the_64_bits(number):
    assert torch.tensor([signed(number)]).item() & MASK == number

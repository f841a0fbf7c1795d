"""A checksum of bit patterns that a slice's holder can compute alone and whose sum over slices is that of the whole."""

import torch

from hpcrl.engines.chunks import chunks

MASK = 2**64 - 1
ODD_STEP = 0x9E3779B97F4A7C15

INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(slice_: torch.Tensor, offset: int) -> int:
    """Σ bits_i · (2i + 1) · c mod 2^64 over the elements, where i counts from the start of the whole buffer."""
    bits = slice_.view(INTEGERS[slice_.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=slice_.device)
    for piece in chunks(bits):
        odd = torch.arange(2 * (offset + piece.start) + 1, 2 * (offset + piece.stop) + 1, 2, device=slice_.device)
        total += (bits[piece].long() * odd).sum()
    return (int(total) * ODD_STEP) & MASK


def signed(number: int) -> int:
    """The int64 with the same 64 bits, to be put into a tensor."""
    return number - 2**64 if number >= 2**63 else number

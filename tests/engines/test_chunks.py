"""Pieces cover a buffer once, in order."""

import pytest
import torch

from hpcrl.engines.chunks import CPU_PIECE, chunks


@pytest.mark.parametrize("length", [0, 1, CPU_PIECE, CPU_PIECE + 1, 3 * CPU_PIECE - 1])
def test_pieces_cover_the_buffer_in_order(length):
    buffer = torch.arange(length)
    parts = [buffer[piece] for piece in chunks(buffer)]
    assert all(0 < len(part) <= CPU_PIECE for part in parts)
    assert torch.equal(torch.cat([buffer[:0], *parts]), buffer)

"""Elementwise work on a long buffer piece by piece, so that what lies between its steps stays small."""

from collections.abc import Iterator

import torch

CPU_PIECE = 2**16
"""Elements: a few buffers of it fit into a core's cache."""
GPU_PIECE = 2**26
"""Elements: few launches, and still little memory."""


def chunks(buffer: torch.Tensor) -> Iterator[slice]:
    """Slices that cover a 1-D buffer in order."""
    size = CPU_PIECE if buffer.device.type == "cpu" else GPU_PIECE
    for start in range(0, len(buffer), size):
        yield slice(start, min(start + size, len(buffer)))

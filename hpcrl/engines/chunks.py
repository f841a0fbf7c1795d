"""Elementwise work on a long buffer piece by piece, so that what lies between its steps stays small."""

from collections.abc import Iterator, Sequence

import torch

CPU_PIECE = 2**16
"""Elements: a few buffers of it fit into a core's cache."""
GPU_PIECE = 2**26
"""Elements: few launches, and still little memory."""


STAGED = 2**24
"""Elements that are on their way from a device at a time; a multiple of what is worked on at a time."""


def chunks(buffer: torch.Tensor) -> Iterator[slice]:
    """Slices that cover a 1-D buffer in order."""
    size = CPU_PIECE if buffer.device.type == "cpu" else GPU_PIECE
    for start in range(0, len(buffer), size):
        yield slice(start, min(start + size, len(buffer)))


def chunks_at(buffer: torch.Tensor, device: torch.device) -> Iterator[tuple[slice, torch.Tensor]]:
    """Slices that cover a 1-D buffer in order, each with what the buffer has there, on the device."""
    for start, part in parts_at(buffer, device):
        for piece in chunks(part):
            yield slice(start + piece.start, start + piece.stop), part[piece]


def parts_at(buffer: torch.Tensor, device: torch.device) -> Iterator[tuple[int, torch.Tensor]]:
    """A 1-D buffer on the device: as it is if it is there, else its parts in order, as those of `on_host`."""
    return iter([(0, buffer)]) if buffer.device == device else on_host(buffer)


def on_host(buffer: torch.Tensor, staged: int = STAGED) -> Iterator[tuple[int, torch.Tensor]]:
    """A 1-D buffer's parts in order: where each begins, and a copy in host memory. The next comes while one is worked
    on, and takes the room of the one before."""
    on_gpu = buffer.device.type == "cuda"
    size = min(staged, len(buffer))
    rooms = [torch.empty(size, dtype=buffer.dtype, pin_memory=on_gpu) for _ in range(2)]
    starts = range(0, len(buffer), max(1, size))
    arriving = _begun(buffer, starts, 0, rooms)
    for number, start in enumerate(starts):
        part, event = arriving
        if number + 1 < len(starts):
            arriving = _begun(buffer, starts, number + 1, rooms)
        if event is not None:
            event.synchronize()
        yield start, part


def _begun(
    buffer: torch.Tensor, starts: Sequence[int], number: int, rooms: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.cuda.Event | None]:
    """A part that is being copied, and what says that it is there."""
    start = starts[number] if starts else 0
    part = rooms[number % 2][: len(buffer) - start]
    part.copy_(buffer[start : start + len(part)], non_blocking=True)
    if buffer.device.type != "cuda":
        return part, None
    return part, torch.cuda.current_stream(buffer.device).record_event()

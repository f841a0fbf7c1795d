"""What a worker's device says of itself: a GPU its clock and its memory, a CPU how fast it is."""

import time
from collections.abc import Iterable

import torch

from hpcrl.placement.exporting import DTYPES
from hpcrl.workers.meter import InUse, Meter

TRIAL = 384
"""Rows and columns of the matrices that a CPU multiplies in its trial: 0.1 GFLOP, from its caches."""
TRIAL_S = 0.02
"""How long it does, in each type of numbers, if not for two products."""


class CudaClock:
    """Fulfils `Clock`: moments on the current stream of a GPU."""

    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        end.synchronize()
        return begin.elapsed_time(end) / 1000


class CudaMemory:
    """Fulfils `Memory`: what tensors take of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def begin(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def in_use(self) -> InUse:
        return InUse(torch.cuda.max_memory_allocated(self._device), torch.cuda.memory_allocated(self._device))


def watch(device: torch.device, meter: Meter) -> None:
    """Have the meter read this device's clock and memory."""
    if device.type == "cuda":
        meter.clock, meter.memory = CudaClock(), CudaMemory(device)


def speeds(device: torch.device, dtypes: Iterable[str]) -> dict[str, float]:
    """Type of numbers, as settings name it → operations a second of products of matrices: the best of a few. Of a GPU
    nothing, whose peak its maker says."""
    if device.type != "cpu":
        return {}
    return {dtype: _speed(getattr(torch, DTYPES[dtype])) for dtype in sorted(set(dtypes))}


def _speed(dtype: torch.dtype) -> float:
    one, other = (torch.ones(TRIAL, TRIAL, dtype=dtype) for _ in range(2))
    made = torch.empty_like(one)
    torch.mm(one, other, out=made)  # a library makes its kernels, and wakes its threads, once
    best, begun = float("inf"), time.perf_counter()
    while best == float("inf") or time.perf_counter() - begun < TRIAL_S:
        before = time.perf_counter()
        torch.mm(one, other, out=made)
        best = min(best, time.perf_counter() - before)
    return 2 * TRIAL**3 / best

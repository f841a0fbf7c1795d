"""What workers send each other in a time, what their memory and disks take, and how fast they multiply."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import torch

from hpcrl.algos.profile_subject import Timer
from hpcrl.parallel.group import Group
from hpcrl.parallel.moving import copy
from hpcrl.placement.exporting import DTYPES
from hpcrl.placement.rates import Link, Links
from hpcrl.placement.rectangles import Rectangles

SENT = {2**8: 32, 2**18: 4, 2**22: 1}
"""Numbers of 4 bytes, and how often they are sent one after another: short messages find a peer's threads awake, or
not, so that each takes another time."""
LARGE = 2**24
"""Numbers that no cache holds."""
RUN = 2**11
"""Numbers of a run of what is copied: as a worker has of a row of a matrix."""
REPEATS = 9
WRITTEN = (2**12, 2**25)
"""Bytes."""
ROWS = (1, 4, 16, 64, 256, 1024)
MATRIX = 1024
"""Rows and columns of the matrix that rows are multiplied with."""


def exchanges(timer: Timer, group: Group) -> Link:
    """A collective with one peer: half of what a sum and what gathers it take, by the bytes that a worker sends."""
    taken = []
    for size, times in SENT.items():
        flat = torch.zeros(size, device=timer.device)
        seconds = timer.typical(partial(_exchange, group, flat, times), REPEATS).whole / times / 2
        taken.append((4 * size / group.size * (group.size - 1), seconds))
    return fitted(taken)


def links(timer: Timer, group: Group) -> Links:
    """Messages both ways at once, as stages exchange, and one way."""
    return Links(exchanges(timer, group), _messages(timer, group, _both_ways), _messages(timer, group, _one_way))


def _messages(timer: Timer, group: Group, how: Callable[[Group, torch.Tensor, torch.Tensor], None]) -> Link:
    taken = []
    for size, times in SENT.items():
        sides = torch.zeros(2, size, device=timer.device)
        action = partial(_repeated, partial(how, group, *sides), times)
        taken.append((4 * size, timer.typical(action, REPEATS).whole / times))
    return fitted(taken)


def _exchange(group: Group, flat: torch.Tensor, times: int) -> None:
    for _ in range(times):
        group.all_gather(group.reduce_scatter(flat), flat)


def _both_ways(group: Group, sent: torch.Tensor, received: torch.Tensor) -> None:
    """To the next in turn, and from the one before; of two, each to the other."""
    following, before = (group.index + 1) % group.size, (group.index - 1) % group.size
    group.exchange([(sent, following)], [(received, before)]).wait()


def _one_way(group: Group, sent: torch.Tensor, received: torch.Tensor) -> None:
    """From the first of each pair to the second, for which both wait."""
    peer = group.index ^ 1
    if peer < group.size and group.index < peer:
        group.exchange([(sent, peer)], []).wait()
    elif peer < group.size:
        group.exchange([], [(received, peer)]).wait()


def _repeated(action: Callable[[], None], times: int) -> None:
    for _ in range(times):
        action()


def fitted(taken: Sequence[tuple[float, float]]) -> Link:
    """Through (bytes, seconds): what the least takes, and the slope to the most."""
    (least, first), (most, last) = taken[0], taken[-1]
    slope = max(1e-12, (last - first) / (most - least))
    return Link(round(max(0.0, first - slope * least) * 1e9), 1 / slope)


def host_copies(timer: Timer) -> Link:
    """Between the device and its host's memory: there, into room that a GPU copies to fast, and back, into memory that
    was freed meanwhile, as parameters go that are released."""
    taken = []
    for size in (2**8, LARGE):
        here = torch.zeros(size, device=timer.device)
        there = torch.empty(size, pin_memory=timer.device.type == "cuda")
        taken.append((4.0 * size, timer.typical(partial(_there_and_back, here, there), 5).whole / 2))
    return fitted(taken)


def _there_and_back(here: torch.Tensor, there: torch.Tensor) -> None:
    there.copy_(here, non_blocking=True)
    if here.device.type == "cuda":
        torch.cuda.current_stream(here.device).synchronize()
    here.untyped_storage().resize_(0)
    here.untyped_storage().resize_(here.nbytes)
    here.copy_(there, non_blocking=True)


def disk(timer: Timer, folder: Path) -> Link:
    """Of a file of each worker that is written and on disk. It has no name."""
    taken = [(float(size), timer.typical(partial(_written, folder, bytes(size)), 3).whole) for size in WRITTEN]
    return fitted(taken)


def _written(folder: Path, data: bytes) -> None:
    with TemporaryFile(dir=folder) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def memory_speed(timer: Timer) -> float:
    """Bytes a second that a device reads and writes."""
    numbers = torch.zeros(LARGE, device=timer.device)
    return 2 * numbers.nbytes / timer.typical(lambda: numbers.add_(1.0), 5).whole


def copy_speed(timer: Timer) -> float:
    """Bytes a second that a device copies from runs that lie apart to one run, as what moves is packed."""
    rows = Rectangles(*np.array([[0], [2 * RUN], [LARGE // RUN], [RUN]], np.int64))
    apart, packed = (torch.zeros(it * LARGE, device=timer.device) for it in (2, 1))
    action = partial(copy, apart, rows, packed, rows.dense())
    return packed.nbytes / timer.typical(action, 5).whole


def product_rates(timer: Timer, dtype: str) -> list[tuple[float, float]]:
    """(rows, operations a second); no rate grows faster than rows."""
    found: list[tuple[float, float]] = []
    matrix = torch.ones(MATRIX, MATRIX, dtype=getattr(torch, DTYPES[dtype]), device=timer.device)
    for rows in ROWS:
        times = max(1, ROWS[-1] // rows // 4)
        action = partial(_products, matrix.new_ones(rows, MATRIX), matrix, times)
        rate = 2.0 * rows * MATRIX**2 * times / timer.typical(action, 3).whole
        most = found[-1][1] * rows / found[-1][0] if found else rate
        found.append((float(rows), min(rate, most)))
    return found


def _products(rows: torch.Tensor, matrix: torch.Tensor, times: int) -> None:
    for _ in range(times):
        torch.mm(rows, matrix)

"""Moves between gloo ranks against arrays whose elements know their own number."""

import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.devices import ON_A_GPU
from support.kernels import kernel_on_host
from support.measured_memory import most_tensors
from support.moving import first_numbers, numbered, runs_of
from support.pool import RankPool, everyone, gloo_pool
from support.tiny_models import odd_config

from hpcrl.parallel import moving
from hpcrl.parallel.context import ParallelContext
from hpcrl.parallel.group import Group
from hpcrl.parallel.moving import carry_out, copy, cut, in_one_launch, in_torch
from hpcrl.placement.holdings import Holding, holdings
from hpcrl.placement.layouts import Ranks, parse_layout
from hpcrl.placement.moving import moves
from hpcrl.placement.rectangles import Rectangles
from hpcrl.placement.worker_memory import staged

CONFIG = replace(odd_config(blocks=4, vocabulary_size=29, intermediate_size=24), tied=True)
PLACED = [("d2t2p1", (0, 1, 2, 3)), ("d1t1p3", (0, 1, 2)), ("d1t4p1", (3, 2, 1, 0)), ("d1t1p1", (1,)), ("d2", (2, 3))]
EIGHT = tuple(range(8))
WIDE = [("d2t2p2", EIGHT), ("d8", EIGHT), ("t4", (0, 2, 4, 6)), ("p4", (4, 5, 6, 7)), ("d3p2", (1, 2, 3, 5, 6, 7))]
FEW = 1 << 12
"""Bytes that are exchanged at a time: so that everything goes in many steps."""


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    with gloo_pool(4) as pool:
        yield pool


def held_by(layout: str, mesh: Ranks, world: int) -> tuple[Holding, ...]:
    return holdings(CONFIG, parse_layout(layout), mesh, world)


def moved(context: ParallelContext, source: tuple, target: tuple, world: int, dtype: torch.dtype) -> list[bool]:
    """There, once more after a change, and back: whether each arrived, and nothing else."""
    group, nodes, numbers = everyone(context), tuple(rank // 2 for rank in range(world)), first_numbers(CONFIG)
    sides = [held_by(*side, world) for side in (source, target)]
    home, away = (numbered(side[context.rank], numbers) for side in sides)
    there, back = (moves(*pair, nodes, context.rank) for pair in (sides, sides[::-1]))

    def drawn(where: np.ndarray, scale: int) -> torch.Tensor:
        return torch.from_numpy(np.where(where < 0, 0, where * scale % 113)).to(dtype)

    found = []
    replica = torch.zeros(len(away), dtype=dtype)
    for scale in (1, 7):
        carry_out(there, drawn(home, scale), replica, group, FEW)
        found.append(torch.equal(replica, drawn(away, scale)))
    again = torch.zeros(len(home), dtype=dtype)
    carry_out(back, replica, again, group, FEW)
    return [*found, torch.equal(again, drawn(home, 7))]


@pytest.mark.parametrize("target", PLACED, ids=lambda side: side[0])
@pytest.mark.parametrize("source", PLACED, ids=lambda side: side[0])
def test_a_replica_has_the_homes_elements_follows_it_and_gives_them_back(ranks, source, target) -> None:
    dtype = (torch.float64, torch.bfloat16, torch.float32, torch.uint8)[len(source[1]) % 4]
    assert ranks.run(moved, source, target, 4, dtype) == [[True] * 3] * 4


@pytest.mark.slow
def test_eight_ranks_move_between_all_of_their_layouts() -> None:
    with gloo_pool(8) as pool:
        for source, target in itertools.permutations(WIDE, 2):
            assert pool.run(moved, source, target, 8, torch.float32) == [[True] * 3] * 8, (source, target)


def test_what_is_one_run_on_both_sides_is_not_packed(ranks) -> None:
    packed = ranks.run(moved_and_packed, ("d1", (0,)), ("d1", (3,)))
    assert packed == [(0, True)] * 4
    packed = ranks.run(moved_and_packed, ("d1", (0,)), ("t2", (2, 3)))
    assert all(arrived for _, arrived in packed)
    assert packed[0][0] > 0


def moved_and_packed(context: ParallelContext, source: tuple, target: tuple) -> tuple[int, bool]:
    """How many elements were copied on a rank, and whether what it is to have came."""
    numbers, copied, plain = first_numbers(CONFIG), [], moving.copy
    sides = [held_by(*side, 4) for side in (source, target)]
    home, away = (torch.from_numpy(numbered(side[context.rank], numbers)) for side in sides)
    found = torch.full_like(away, -1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(moving, "ALONE_BYTES", 64)
        patched.setattr(moving, "copy", lambda *sides: (copied.append(sides[1].numel), plain(*sides)))
        carry_out(moves(*sides, (0, 1, 2, 3), context.rank), home, found, everyone(context))
    return sum(copied), torch.equal(found, away)


def test_a_move_takes_what_the_plan_says_beside_its_buffers() -> None:
    """Buffers of many MiB, of which 1 MiB is packed at a time."""
    with gloo_pool(2) as pool:
        for measured, estimated in pool.run(packed_for_a_move, 2**20):
            assert measured == pytest.approx(estimated, rel=0.2)


def packed_for_a_move(context: ParallelContext, staged_bytes: int) -> tuple[float, float]:
    """The bytes that a rank takes at most for a move beyond its buffers, and how many the plan says."""
    config = replace(CONFIG, hidden_size=1024, intermediate_size=1024)
    sides = [holdings(config, parse_layout(layout), (0, 1), 2) for layout in ("t2", "d2")]
    view = moves(*sides, (0, 0), context.rank)
    source, target = (torch.ones(length_of(side[context.rank])) for side in sides)
    measured, _ = most_tensors(lambda: carry_out(view, source, target, everyone(context), staged_bytes))
    return measured, staged([source.nbytes, target.nbytes], staged_bytes)


def length_of(held: Holding) -> int:
    return max(at + run for _, _, at, run in runs_of(held))


def test_a_peer_that_dies_in_a_move_is_lost_to_the_others() -> None:
    with gloo_pool(2) as pool, pytest.raises(AssertionError) as failed:
        pool.run(move_or_die)
    said = str(failed.value)
    assert "rank 1:\ndied" in said
    assert re.search(r"messages, operation \d+ of ranks \[0, 1\] in this call, broke on rank 0: RuntimeError", said)


def move_or_die(context: ParallelContext) -> None:
    group = everyone(context)
    sides = [held_by(*side, 2) for side in (("d1", (0,)), ("d1", (1,)))]
    if context.rank == 1:
        exchanges, begin = itertools.count(), Group.exchange
        Group.exchange = lambda *sides: os._exit(1) if next(exchanges) == 3 else begin(*sides)  # type: ignore
    carry_out(moves(*sides, (0, 1), context.rank), torch.zeros(200_000), torch.zeros(200_000), group, FEW)


def test_small_parts_go_together_and_large_ones_alone() -> None:
    assert cut([3, 4, 20, 2, 50, 9, 9, 9], 25, 10) == [[7], [20, 2], [25], [25], [18], [9]]
    assert cut([], 25, 10) == []
    assert cut([5, 5, 5], 2, 10) == [[2], [2], [1], [2], [2], [1], [2], [2], [1]]


def test_cuts_have_all_and_no_step_has_more_than_it_may() -> None:
    draw = np.random.default_rng(3)
    for _ in range(200):
        parts = draw.integers(1, draw.integers(2, 99), draw.integers(0, 30)).tolist()
        numel, alone = draw.integers(1, 60, 2).tolist()
        steps = cut(parts, numel, alone)
        assert all(0 < sum(step) <= numel and min(step) > 0 for step in steps)
        messages = [message for step in steps for message in step]
        assert sum(messages) == sum(parts)
        edges, ends = set(itertools.accumulate(parts, initial=0)), set(itertools.accumulate(messages, initial=0))
        large = [end for part, end in zip(parts, itertools.accumulate(parts), strict=True) if part >= min(alone, numel)]
        assert set(large) <= ends
        assert all(end in edges for end in ends) or max(parts) > numel


DTYPES = [torch.uint8, torch.bfloat16, torch.float32, torch.int64]


def strided(dtype: torch.dtype, device: str = "cpu") -> tuple[torch.Tensor, Rectangles, torch.Tensor, Rectangles]:
    """A slice with something in it, one of zeros, and rectangles of both."""
    columns = [np.array(column) for column in ([3, 50], [9, 5], [4, 1], [7, 5])]
    received = Rectangles(np.array([0, 60]), np.array([11, 5]), columns[2], columns[3])
    source = torch.randint(1, 100, (90,)).to(device, dtype)[8:]
    return source, Rectangles(*columns), torch.zeros(90, dtype=dtype, device=device)[10:], received


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_A_GPU)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_copies_of_slices_of_tensors_are_torchs(dtype: torch.dtype, device: str) -> None:
    source, sent, found, received = strided(dtype, device)
    expected = torch.zeros_like(found)
    copy(source, sent, found, received)
    in_torch(source, sent, expected, received)
    assert torch.equal(found, expected) and bool(found.any())


@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_of_one_launch_are_torchs(dtype: torch.dtype, tmp_path: Path) -> None:
    source, sent, found, received = strided(dtype)
    expected = torch.zeros_like(found)
    in_one_launch(kernel_on_host(tmp_path), source, sent, found, received, stream=0)
    in_torch(source, sent, expected, received)
    assert torch.equal(found, expected) and bool(found.any())

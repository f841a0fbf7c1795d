"""Moves: plans of a 70B model, copies of rectangles against memcpy, and a reallocation of four gloo ranks against one
large exchange of its bytes and against a broadcast of every parameter; the sides in turn. What one thread does alone is
taken in its CPU time, what ranks do together in wall time."""

import ctypes
import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from figures import Figure

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.pool import RankPool, everyone, gloo_pool  # noqa: E402

from hpcrl.engines.checksum import checksums  # noqa: E402
from hpcrl.families.config import DecoderConfig  # noqa: E402
from hpcrl.ops.library import compiled  # noqa: E402
from hpcrl.ops.rectangles import Memory, Runs, copy_rectangles  # noqa: E402
from hpcrl.parallel.moving import carry_out  # noqa: E402
from hpcrl.placement import moving as planner  # noqa: E402
from hpcrl.placement import shards  # noqa: E402
from hpcrl.placement.buffers import lay_out  # noqa: E402
from hpcrl.placement.holdings import Holding, holdings  # noqa: E402
from hpcrl.placement.layouts import Layout  # noqa: E402
from hpcrl.placement.overlaps import overlaps  # noqa: E402
from hpcrl.processes import keep_freed_memory  # noqa: E402

LLAMA = {"family": "llama", "vocabulary_size": 128256, "head_dim": 128, "max_positions": 8192}
LARGE = DecoderConfig(**LLAMA, hidden_size=8192, intermediate_size=28672, blocks=80, heads=64, kv_heads=8)
SMALL = DecoderConfig(
    **(LLAMA | {"vocabulary_size": 8192, "head_dim": 64}),
    hidden_size=1024, intermediate_size=2816, blocks=4, heads=16, kv_heads=8,
)  # fmt: skip
RANKS = 64
SIZES = (1, 2, 4, 8, 16, 32, 64)
ROUNDS = 12
MEBIBYTES = 64
PIECE = 16 << 20
"""Elements that one broadcast takes."""


def moving() -> list[Figure]:
    return [*_plans(), *(_copies(run) for run in (1024, 4096, 65536)), *_reallocation()]


def _plans() -> list[Figure]:
    """Every pair of layouts of 64 ranks, by one rank of the middle; the slowest again, for the least time counts."""
    layouts = [Layout(dp, tp, RANKS // dp // tp) for dp, tp in itertools.product(SIZES, SIZES) if dp * tp <= RANKS]
    placed = {layout: holdings(LARGE, layout, tuple(range(RANKS)), RANKS) for layout in layouts}
    pairs = list(itertools.permutations(layouts, 2))
    once = sorted(((_planned(placed[source], placed[target]), (source, target)) for source, target in pairs), key=_ms)
    again = [(min(ms, *(_planned(*map(placed.get, pair)) for _ in range(3))), pair) for ms, pair in once[-20:]]
    slowest, (source, target) = max(again, key=_ms)
    detail = f"{source} → {target}; {len(pairs)} pairs, median {once[len(once) // 2][0]:.0f} ms"
    return [Figure("plan of one rank, 70B, slowest pair of 64-rank layouts", slowest, "ms", "≤ 50", detail)]


def _planned(source: Any, target: Any) -> float:
    """Milliseconds, with nothing remembered."""
    overlaps.cache_clear()
    planner.moves.cache_clear()
    begun = time.thread_time()
    planner.moves(source, target, tuple(rank // 8 for rank in range(RANKS)), 9)
    return (time.thread_time() - begun) * 1e3


def _ms(taken: tuple[float, Any]) -> float:
    return taken[0]


def _copies(run: int) -> Figure:
    """Every second run of a buffer, packed."""
    total = MEBIBYTES << 20
    source, packed = torch.ones(2 * total, dtype=torch.uint8), torch.ones(total, dtype=torch.uint8)
    columns = [np.array([number], np.int64) for number in (0, 2 * run, 0, run, total // run, run)]
    memcpy = ctypes.CDLL(None).memcpy
    memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

    def ours() -> None:
        sides = [Memory(buffer.data_ptr(), buffer.numel(), 1) for buffer in (source, packed)]
        copy_rectangles(sides[0], Runs(*columns[:2]), sides[1], Runs(*columns[2:4]), columns[4], columns[5])

    def theirs() -> None:
        memcpy(packed.data_ptr(), source.data_ptr(), total)

    mine, raw = _in_turn(ours, theirs)
    how = "compiled" if getattr(compiled(), "hpcrl_copy_rectangles", None) else "numpy"
    detail = f"{total / mine / 1e9:.1f} and {total / raw / 1e9:.1f} GB/s; {how}"
    what = f"speed of packing runs of {run} bytes, {MEBIBYTES} MiB in all, in memcpy's"
    return Figure(what, raw / mine, "×", "≥ 0.8", detail)


def _in_turn(*sides: Callable[[], Any]) -> list[float]:
    """Least CPU seconds of each: what others do on this machine only adds to them."""
    taken: list[list[float]] = [[] for _ in sides]
    for _ in range(ROUNDS):
        for side, of_side in zip(sides, taken, strict=True):
            begun = time.thread_time()
            side()
            of_side.append(time.thread_time() - begun)
    return [min(of_side) for of_side in taken]


def _reallocation() -> list[Figure]:
    with gloo_pool(4) as pool:
        whole, halves = (_moved(pool, Layout(1, 2, 2), target) for target in (Layout(4), Layout(2, 2)))
    sent, lacked = whole[1]
    ours, exchange, broadcast, digest = whole[0]
    of_halves = [f"{each * 1e3:.0f} ms" for each in (halves[0][0], halves[0][2])]
    what, to_whole, to_halves = "a reallocation of 4 ranks, d1t2p2 to", "d4t1p1", "d2t2p1"
    return [
        Figure(f"bytes of {what} {to_whole}, in what they lack", sent / lacked, "×", "≤ 1", f"{sent / 1e6:.0f} MB"),
        Figure(
            "its time in one large exchange of its bytes", ours / exchange, "×", "≤ 1.5",
            f"{ours * 1e3:.0f} and {exchange * 1e3:.0f} ms",
        ),
        Figure("the digest of what came, in its time", digest / ours, "×", "", f"{digest * 1e3:.0f} ms"),
        Figure("a broadcast of the whole model in its time", broadcast / ours, "×", "", f"{broadcast * 1e3:.0f} ms"),
        Figure(
            f"a broadcast of the whole model in the time of {what} {to_halves}", halves[0][2] / halves[0][0], "×",
            "≥ 1.3", f"{halves[1][0] / 1e6:.0f} MB; {of_halves[0]}, the broadcast {of_halves[1]}",
        ),
    ]  # fmt: skip


def _moved(pool: RankPool, source: Layout, target: Layout) -> tuple[list[float], list[int]]:
    """Least seconds of a move, an exchange, a broadcast and a digest, until the last rank ended; bytes received, and
    lacked."""
    found = pool.run(reallocate, source, target)
    seconds = [min(map(max, *of_ranks)) for of_ranks in zip(*(taken for taken, _ in found), strict=True)]
    return seconds, [sum(of_ranks) for of_ranks in zip(*(counted for _, counted in found), strict=True)]


def reallocate(context: Any, *layouts: Layout) -> tuple[list[list[float]], tuple[int, int]]:
    """On a rank: seconds of the move, of one all-to-all of its bytes, of broadcasts, of a digest of what it then has;
    bytes received, and lacked."""
    keep_freed_memory()  # as a worker does
    group, mesh = everyone(context), (0, 1, 2, 3)
    source, target = (holdings(SMALL, layout, mesh, 4) for layout in layouts)
    view = planner.moves(source, target, mesh, context.rank)
    home, away = (torch.rand(_numel(side[context.rank])) for side in (source, target))
    received = {part.peer: part.rectangles.numel for each in view.rounds for part in each.receives}
    sent = {part.peer: part.rectangles.numel for each in view.rounds for part in each.sends}
    whole = torch.rand(_numel(holdings(SMALL, Layout(), (0,), 1)[0]))
    rooms = [{peer: torch.rand(numel) for peer, numel in sides.items()} for sides in (sent, received)]

    def exchange() -> None:
        sends, receives = ([(room, peer) for peer, room in side.items()] for side in rooms)
        group.exchange(sends, receives).wait()

    def broadcast() -> None:
        for piece in whole.split(PIECE):
            group.broadcast(piece, 0)

    parts = shards.held(SMALL, shards.cut_of(layouts[1], context.rank))
    offsets = lay_out(part.parameter for part in parts).offsets
    spans = [span.moved(at) for part, at in zip(parts, offsets, strict=True) for span in part.spans]
    acts = (lambda: carry_out(view, home, away, group), exchange, broadcast, lambda: checksums([away], spans))
    taken: list[list[float]] = [[] for _ in acts]
    for _ in range(ROUNDS):
        for act, of_act in zip(acts, taken, strict=True):
            group.total(torch.zeros(1))
            begun = time.perf_counter()
            act()
            of_act.append(time.perf_counter() - begun)
    lacked = _held(target[context.rank]) - view.copied[1].numel
    return taken, (4 * sum(received.values()), 4 * lacked)


def _held(held: Holding) -> int:
    """Elements, without gaps and padding."""
    return sum(rows * run for kind in held.kinds for _, rows, run, *_ in held.patterns[kind])


def _numel(held: Holding) -> int:
    """Of the buffer in which they lie."""
    spans = ((at, span) for at, kind in zip(held.offsets, held.kinds, strict=True) for span in held.patterns[kind])
    return max(at + offset + (rows - 1) * step + run for at, (_, rows, run, _, offset, step) in spans)

"""A model that 1, 2 and 4 data-parallel ranks load: together, and each by itself, in turn; bytes read and wall time."""

import os
import shutil
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
from exports import CONFIG
from figures import Figure, median

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.pool import RankPool, gloo_pool  # noqa: E402
from support.reading import rchar  # noqa: E402

from hpcrl.engines.flat import FlatTransformer  # noqa: E402
from hpcrl.models.pretrained import load_pretrained, write_random_pretrained  # noqa: E402
from hpcrl.parallel.context import ParallelContext  # noqa: E402
from hpcrl.parallel.replica import Readers, groups_of, reads_alone, sharing  # noqa: E402
from hpcrl.placement.layouts import Layout  # noqa: E402

ROUNDS = 5


class Load(NamedTuple):
    """By all ranks together."""

    seconds: float
    read: int


def loading(work: Path) -> list[Figure]:
    folder = work / "model"
    folder.mkdir(parents=True, exist_ok=True)
    write_random_pretrained(folder, CONFIG, seed=1)
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    try:
        with gloo_pool(4) as pool:
            return [figure for dp in (1, 2, 4) for figure in _figures(pool, folder, dp, size)]
    finally:
        shutil.rmtree(folder)


def _figures(pool: RankPool, folder: Path, dp: int, size: int) -> list[Figure]:
    sides: dict[bool, list[Load]] = {True: [], False: []}
    for number in range(ROUNDS + 1):
        for together in sides:
            found = [Load(*it) for it in pool.run(_load, folder, dp, together) if it is not None]
            if number:
                sides[together].append(Load(max(it.seconds for it in found), sum(it.read for it in found)))
    ours, alone = (_median(sides[together]) for together in (True, False))
    ratios = [one.seconds / other.seconds for one, other in zip(sides[True], sides[False], strict=True)]
    detail = f"{ours.seconds:.2f} s, and {alone.seconds:.2f} s; of pairs {min(ratios):.2f} … {max(ratios):.2f}"
    where = f"dp {dp}: a model of {size / 1e6:.0f} MB"
    return [
        Figure(
            f"{where}, read by all ranks, of its files",
            ours.read / size,
            "×",
            "≤ 1.05",
            f"{alone.read / size:.2f} × where each reads for itself",
        ),
        Figure(f"{where}, loaded together ÷ by each rank for itself, on one disk", median(ratios), "×", "", detail),
    ]


def _load(context: ParallelContext, folder: Path, dp: int, together: bool) -> tuple[float, int] | None:
    """On a rank: fill a bf16 model, from the disk."""
    layout, ranks = Layout(dp), tuple(range(dp))
    context.form(sharing(layout, ranks))
    if context.rank >= dp:
        return None
    readers: Readers = groups_of(context, layout, ranks).readers
    model = FlatTransformer(CONFIG, dtype=torch.bfloat16, trainable=False)
    for path in folder.glob("*.safetensors") if context.rank == 0 else ():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    readers.group.told(b"", 0, ranks)
    before, begun = rchar(), time.perf_counter()
    _, parameters = load_pretrained(folder, readers=readers if together else reads_alone())
    model.load(parameters)
    return time.perf_counter() - begun, rchar() - before


def _median(loads: list[Load]) -> Load:
    return Load(median([load.seconds for load in loads]), median([load.read for load in loads]))

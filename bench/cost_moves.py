"""Moves and releases of a model of 64 million parameters on two ranks, against what the cost model says of them by the
links, the memory and the host copies that a profile measures in the same minute."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from costs import experiment_in
from figures import Figure, median
from moves import SMALL as MODEL
from profiles import everyone_of, groups_in, timer_of

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.pool import RankPool, gloo_pool  # noqa: E402

from hpcrl.algos.profile_links import copy_speed, host_copies, links, memory_speed  # noqa: E402
from hpcrl.algos.profile_subject import opened  # noqa: E402
from hpcrl.config.model import ModelConfig  # noqa: E402
from hpcrl.parallel.moving import carry_out  # noqa: E402
from hpcrl.placement.costs import CostModel  # noqa: E402
from hpcrl.placement.data_sheets import CPU_CORE  # noqa: E402
from hpcrl.placement.holdings import holdings  # noqa: E402
from hpcrl.placement.layouts import Layout, parse_layout  # noqa: E402
from hpcrl.placement.move_costs import MoveCosts  # noqa: E402
from hpcrl.placement.moving import moves  # noqa: E402
from hpcrl.placement.placing import Placed  # noqa: E402
from hpcrl.placement.rates import Link, Links  # noqa: E402
from hpcrl.placement.workload import Workload  # noqa: E402
from hpcrl.processes import keep_freed_memory  # noqa: E402

MOVED = (
    ("d2", "t2"), ("t2", "d2"), ("d2", "p2"), ("p2", "d2"), ("t2", "p2"), ("p2", "t2"), ("d1", "d2"), ("d1", "t2"),
)  # fmt: skip
RELEASED = ("d1", "t2", "p2")
REPEATS, TURNS = 3, 4
SETTLED = 8
"""Releases after which the C library's heap has grown by what a few copies need, and no page is faulted in anew."""
BYTES = 4
"""Of a number."""


class Lasting(NamedTuple):
    """What was done, and its seconds: until both ranks had ended, and as they were predicted."""

    what: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def rates_on(context: Any) -> tuple[Links, Link, float, float]:
    """On a rank: links, host copies and memory, as a profile measures them."""
    keep_freed_memory()
    timer, group = timer_of(context, cpu=False), everyone_of(context)
    return links(timer, group), host_copies(timer), memory_speed(timer), copy_speed(timer)


def moved(context: Any, source: str, target: str) -> float:
    """On a rank: seconds of a move."""
    keep_freed_memory()
    timer, group = timer_of(context, cpu=False), everyone_of(context)
    sides = [_held(parse_layout(it)) for it in (source, target)]
    view = moves(*sides, (0, 0), context.rank)
    home, away = (torch.ones(_numel(side[context.rank])) for side in sides)
    return timer.typical(lambda: carry_out(view, home, away, group), REPEATS).whole


def _held(layout: Layout) -> Any:
    return holdings(MODEL, layout, tuple(range(layout.size)), 2)


def _numel(held: Any) -> int:
    spans = ((at, span) for at, kind in zip(held.offsets, held.kinds, strict=True) for span in held.patterns[kind])
    return max((at + offset + (rows - 1) * step + run for at, (_, rows, run, _, offset, step) in spans), default=0)


def released(context: Any, layout: str, folder: Path) -> tuple[float, float]:
    """On a rank: seconds in which parameters go to the host's memory, and come back."""
    keep_freed_memory()
    timer, groups = timer_of(context, cpu=False), groups_in(context, parse_layout(layout))
    config = MODEL.with_head("vocabulary")
    engine = opened(folder / f"{layout}-{context.rank}", config, ModelConfig(path=""), groups, timer, 256)
    there, back = [], []
    for _ in range(SETTLED + REPEATS):
        there.append(timer.timed(lambda: engine.release({"parameters": "host"})).whole)
        back.append(timer.timed(engine.flat).whole)
    return median(there[SETTLED:]), median(back[SETTLED:])


def lasting(work: Path) -> list[Lasting]:
    """Rates, moves and releases in turn, a few times. The folder has an experiment's inputs."""
    turns, rates = [], []
    with gloo_pool(2) as pool:
        for turn in range(TURNS):
            rates.append(pool.run(rates_on)[0])
            turns.append(_turn(pool, work / str(turn)))
    near, host, speed, copying = zip(*rates, strict=True)
    middle = Links(*map(_middle, zip(*map(msgspec.structs.astuple, near), strict=True)))
    speeds = {"bytes_per_s": median(speed), "copied_per_s": median(copying)}
    fields = {"near": middle, "host": _middle(host)} | speeds
    known = msgspec.structs.replace(CPU_CORE, source="this bench", **fields)
    model, experiment = MODEL.with_head("vocabulary"), experiment_in(work)
    nothing = Workload(np.zeros(0, np.int64), np.zeros(0, np.int64))
    costs = CostModel(experiment, {"reference": model}, known, nothing)
    measured = {what: median([turn[what] for turn in turns]) for what in turns[0]}
    return [Lasting(what, seconds, _predicted(what, costs)) for what, seconds in measured.items()]


def _turn(pool: RankPool, folder: Path) -> dict[str, float]:
    folder.mkdir(parents=True)
    found = {f"{source} → {target}": pool.run(moved, source, target)[0] for source, target in MOVED}
    for layout in RELEASED:
        there, back = pool.run(released, layout, folder)[0]
        found |= {f"{layout} released": there, f"{layout} brought back": back}
    return found


def _middle(links: Sequence[Link]) -> Link:
    return Link(round(median([it.latency_ns for it in links])), median([it.bytes_per_s for it in links]))


def _predicted(what: str, costs: CostModel) -> float:
    """By the cost model, in seconds."""
    source, *target = what.replace("→", " ").split()
    at = _placed(source)
    if target[0] in ("released", "brought"):
        return costs.release_nanoseconds("reference", at) / 1e9
    moved = MoveCosts(costs.models["reference"], BYTES, 2, costs.rates)
    return int(moved.matrix([at], [_placed(target[0])])[0, 0]) / 1e9


def _placed(layout: str) -> Placed:
    shape = parse_layout(layout)
    return Placed(shape, tuple(range(shape.size)), "native")


def figures(found: Sequence[Lasting]) -> list[Figure]:
    told = {
        name: [it for it in found if ("→" in it.what) == is_move]
        for name, is_move in (("moves", True), ("releases", False))
    }
    return [
        Figure(f"{name}: worst error", 100 * max(abs(it.error) for it in of), "%", "≤ 20", "; ".join(map(_told, of)))
        for name, of in told.items()
    ]


def _told(it: Lasting) -> str:
    return f"{it.what} {it.error:+.0%} of {1e3 * it.measured:.0f} ms"

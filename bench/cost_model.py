"""The cost model held to reality, in families of figures that each take three minutes at most: all else on the machine
can rest that long."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import cost_bytes
import cost_moves
import cost_steps
import costs
from figures import Figure
from others import watched

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.experiments import write_inputs  # noqa: E402
from support.pool import gloo_pool  # noqa: E402

Measure = Callable[[Path], list[Figure]]


def _calls(name: str, work: Path) -> list[Figure]:
    with gloo_pool(2) as pool:
        return costs.figures(name, costs.compared(pool, work, name, costs.LAYOUTS))


def _moves(work: Path) -> list[Figure]:
    return cost_moves.figures(cost_moves.lasting(work))


def _bytes(work: Path) -> list[Figure]:
    with gloo_pool(2) as pool:
        models = costs.MODELS.items()
        found = [it for name, of in models for it in cost_bytes.bytes_of(pool, work, name, of.with_head("vocabulary"))]
    return cost_bytes.figures(found)


def _prepared(measure: Measure, work: Path) -> list[Figure]:
    """In an empty folder, with an experiment's inputs in it."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    write_inputs(work)
    return measure(work)


def _beside_others(what: str, measure: Measure, work: Path) -> list[Figure]:
    with watched() as others:
        found = _prepared(measure, work)
    named = f"processors that other programs had meanwhile: {what}"
    return [*found, Figure(named, others.processors, f"of {os.cpu_count()}")]


FAMILIES: Mapping[str, Measure] = {
    **{name: partial(_beside_others, f"calls of the {name} model", partial(_calls, name)) for name in costs.MODELS},
    "moves": partial(_beside_others, "moves and releases", _moves),
    "bytes": partial(_prepared, _bytes),
    "step": cost_steps.stepped,
}

"""A script that times calls of a role on workers 0-3, whose rows are there, or on workers 4-7; a turn is a round.

A turn begins when there is a file `go-<step>` in the folder, and what it took is in `took-<step>`. `stop` ends the
loop.
"""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from groups_shapes import CALLS, KEYS, ROW_CALLS, TOKENS

from hpcrl.recipes import toy
from hpcrl.recipes.algorithm import RoleKind
from hpcrl.recipes.registered import Dispatch, register
from hpcrl.workers.toy import ToyRole

FOLDER = "HPCRL_BENCH_FOLDER"
FAR = {f"far_{key}": key for key in KEYS}


def made(rows, prefix=""):
    return {f"{prefix}{key}": [np.arange(TOKENS, dtype=dtype) for _ in rows] for key, dtype in KEYS.items()}


class Learner(ToyRole):
    """What is called."""

    @register(Dispatch.ONE_TO_ALL)
    def nothing(self, number):
        return number

    @register(Dispatch.DP_COMPUTE_PROTO, inputs=("x",), outputs=KEYS)
    def make(self, rows):
        return made(rows["x"])

    @register(Dispatch.DP_COMPUTE_PROTO, inputs=tuple(KEYS), outputs={"ratios": "float32"})
    def learn(self, rows):
        columns = zip(*(rows[key] for key in KEYS), strict=True)
        return {"ratios": [(logprobs - old) * (labels == tokens) for tokens, labels, logprobs, old in columns]}


class Maker(ToyRole):
    """Makes rows elsewhere."""

    @register(Dispatch.DP_COMPUTE_PROTO, inputs=("x",), outputs={far: KEYS[key] for far, key in FAR.items()})
    def make_far(self, rows):
        return made(rows["x"], "far_")


def loop(run, e):
    (actor, critic), folder = run.groups("actor", "critic"), Path(os.environ[FOLDER])
    for step in run.steps():
        while not (folder / f"go-{step.number}").exists():
            if (folder / "stop").exists():
                return
            time.sleep(0.02)
        batch = step.batch()
        here = batch.union(actor.make(batch))
        there = batch.union(critic.make_far(batch)).rename(FAR)
        here.mean("tokens"), there.mean("tokens")  # both are made
        took = {"rows_there": [timed(actor.learn, here) for _ in range(ROW_CALLS)]}
        took |= {"rows_elsewhere": [timed(actor.learn, there) for _ in range(ROW_CALLS)]}
        took |= {"no_rows": [timed(actor.nothing, number) for number in range(CALLS)]}
        (folder / "taking").write_text(json.dumps(took))
        (folder / "taking").rename(folder / f"took-{step.number}")


def timed(call, *given):
    begun = time.perf_counter()
    call(*given, blocking=True)
    return time.perf_counter() - begun


ALGORITHM = replace(
    toy.ALGORITHM,
    script=loop,
    recipe=lambda e: (),
    metrics={},
    roles={
        "actor": RoleKind(f"{__name__}:Learner", axes=("dp",), methods=Learner),
        "critic": RoleKind(f"{__name__}:Maker", axes=("dp",), methods=Maker),
    },
)

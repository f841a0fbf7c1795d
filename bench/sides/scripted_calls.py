"""A script of many calls, one after another, each of eight rows; it fails once when they are all on disk.

How long a turn's calls took goes into a file beside the run, which decides nothing.
"""

import os
import time
from dataclasses import replace
from pathlib import Path

from hpcrl.recipes import toy

CALLS = 200
FOLDER = "HPCRL_BENCH_FOLDER"


def loop(run, e):
    (critic, actor), folder = run.groups("critic", "actor"), Path(os.environ[FOLDER])
    for step in run.steps():
        batch = step.batch()
        batch = batch.union(actor.generate(batch))
        begun = time.perf_counter()
        for _ in range(CALLS):
            critic.inference(batch, blocking=True)
        with (folder / "seconds").open("a") as file:
            file.write(f"{(time.perf_counter() - begun) / CALLS}\n")
        if step.number == 2 and not (folder / "failed").exists():
            time.sleep(3)
            (folder / "failed").touch()
            raise RuntimeError("as it should, once")


ALGORITHM = replace(toy.ALGORITHM, script=loop)

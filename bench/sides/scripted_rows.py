"""A script that fetches rows of one key, has another read by a computation, and takes means of four.

All that its process receives while it does so is counted, at its sockets; the figures go into a file beside the run.
"""

import json
import os
from dataclasses import replace
from pathlib import Path

from hpcrl.recipes import toy
from hpcrl.recipes.algorithm import computed
from hpcrl.wire import channel

FOLDER = "HPCRL_BENCH_FOLDER"
received = 0


def count_received():
    """From now on, of every frame that any socket of this process gets."""
    waiting = channel.waiting

    def counting(socket, addressed):
        global received
        for frames in waiting(socket, addressed):
            received += sum(map(len, frames))
            yield frames

    channel.waiting = counting


def halved(rows):
    return {"z": [0.5 * row for row in rows["v"]]}


def loop(run, e):
    count_received()
    (critic, actor, reward), folder = run.groups("critic", "actor", "reward"), Path(os.environ[FOLDER])
    for step in run.steps():
        batch = step.batch()
        batch = batch.union(actor.generate(batch))
        batch = batch.union(critic.inference(batch), reward.inference(batch))
        before = received
        batch = batch.union(run.compute(halved, batch))
        rows = batch.fetch("y")["y"]
        fetched = received
        means = {key: batch.mean(key) for key in ("y", "r", "v", "z")}
        with (folder / "bytes").open("a") as file:
            read = 2 * sum(row.nbytes for row in rows)  # those of v are as long
            figures = {"read": read, "received": received - before, "for_means": received - fetched}
            file.write(json.dumps(figures | {"means": len(means)}) + "\n")


CALLS = {call.name: call for call in toy.CALLS if call.name in ("actor_gen", "rew_inf", "critic_inf")}
COMPUTED = computed("halved", ("v",), ("z",))
ALGORITHM = replace(
    toy.ALGORITHM,
    script=loop,
    recipe=lambda e: (*CALLS.values(), COMPUTED),
    metrics={call: names for call, names in toy.ALGORITHM.metrics.items() if call in CALLS},
    roles={role: kind for role, kind in toy.ALGORITHM.roles.items() if role != "reference"},
)

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


class Received:
    """Bytes of every frame that any socket of this process gets from now on."""

    def __init__(self):
        self.bytes = 0
        self._waiting, channel.waiting = channel.waiting, self._counting

    def _counting(self, socket, addressed):
        for frames in self._waiting(socket, addressed):
            self.bytes += sum(map(len, frames))
            yield frames


def halved(rows):
    return {"z": [0.5 * row for row in rows["v"]]}


def loop(run, e):
    received = Received()
    (critic, actor, reward), folder = run.groups("critic", "actor", "reward"), Path(os.environ[FOLDER])
    for step in run.steps():
        batch = step.batch()
        batch = batch.union(actor.generate(batch))
        batch = batch.union(critic.inference(batch), reward.inference(batch))
        before = received.bytes
        batch = batch.union(run.compute(halved, batch))
        rows = batch.fetch("y")["y"]
        fetched = received.bytes
        means = {key: batch.mean(key) for key in ("y", "r", "v", "z")}
        with (folder / "bytes").open("a") as file:
            read = 2 * sum(row.nbytes for row in rows)  # those of v are as long
            figures = {"read": read, "received": received.bytes - before, "for_means": received.bytes - fetched}
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

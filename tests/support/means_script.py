"""The toy as a script that takes means of rows wherever they lie, and compares each with that of the fetched rows."""

import math
from dataclasses import replace
from typing import Any

from support import toy_script


def fetched(batch: Any, key: str) -> float:
    """The slow way."""
    numbers = [number for row in batch.fetch(key)[key] for number in row.ravel().tolist() if number == number]
    return math.fsum(numbers) / len(numbers)


def loop(run: Any, e: Any) -> None:
    actor, critic, reward = run.groups("actor", "critic", "reward")
    run.state.setdefault("by", 0.25)
    for step in run.steps():
        halves = [part.union(actor.generate(part)) for part in step.batch().chunk(2)]
        batch = halves[0].concat(halves)
        batch = batch.union(reward.inference(batch), critic.inference(batch))
        batch = batch.union(run.compute(toy_script.shifted, batch, run.state["by"]))
        best = batch.filter([row[0] > batch.mean("r") for row in batch.fetch("r")["r"]])
        copied = batch.concat([best[:1].repeat(2), best[1:].repeat(3)])
        critic.update(batch, blocking=False)
        loss = actor.update(best).stats["loss"]
        means = {key: batch.mean(key) for key in ("x", "y", "z", "r")}
        run.state["by"] = 0.9 * run.state["by"] + 1e-3 * loss * means["y"]
        step.log(
            **means,
            copied=copied.mean("y"),
            same=all(mean == fetched(batch, key) for key, mean in means.items()),
            copied_same=copied.mean("y") == fetched(copied, "y"),
        )


ALGORITHM: Any = replace(toy_script.ALGORITHM, script=loop)

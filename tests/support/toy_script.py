"""The toy as a script: rows of two calls in a batch, a computation, a filter, a role that begins to learn later."""

from dataclasses import replace
from typing import Any

import numpy as np

from hpcrl.recipes import toy
from hpcrl.recipes.algorithm import computed

COMPUTED = computed("shifted", ("y",), ("z",))
METRICS = {call: names for call, names in toy.ALGORITHM.metrics.items() if call != "ref_inf"}


def recipe(experiment: Any) -> Any:
    """Without a reference: its place has what the script computes."""
    return (*(call for call in toy.CALLS if call.name != "ref_inf"), COMPUTED)


def shifted(rows: Any, by: float) -> Any:
    return {"z": [0.5 * row + by for row in rows["y"]]}


def loop(run: Any, e: Any) -> None:
    actor, critic, reward = run.groups("actor", "critic", "reward")
    run.state.setdefault("by", 0.25)
    for step in run.steps():
        halves = [part.union(actor.generate(part)) for part in step.batch().chunk(2)]
        batch = halves[0].concat(halves)
        scored = reward.inference(batch, blocking=False)
        values = critic.inference(batch, blocking=False)
        batch = batch.union(scored, values, run.compute(shifted, batch, run.state["by"]))
        fitted = critic.update(batch, blocking=False)
        if step.number > 1:
            rewards = np.array([row[0] for row in batch.fetch("r")["r"]])
            best = batch.filter(rewards >= np.median(rewards))
            loss = actor.update(best).stats["loss"]
            run.state["by"] = 0.9 * run.state["by"] + 0.001 * loss
        step.log(by=run.state["by"], loss=fitted.result().stats["loss"])
        if step.evaluates:
            held_out = step.held_out()
            held_out = held_out.union(actor.generate(held_out))
            step.log(held_out=reward.inference(held_out).mean("r"))


ALGORITHM: Any = replace(
    toy.ALGORITHM,
    recipe=recipe,
    script=loop,
    roles={role: kind for role, kind in toy.ALGORITHM.roles.items() if role != "reference"},
    metrics=METRICS,
)

"""A toy's script in a file of its own: its first version until a step, its second from then on."""

from pathlib import Path

TEXT = """
from dataclasses import replace
from hpcrl.data.rows.vectors import VECTORS
from hpcrl.recipes.algorithm import computed
from support import toy_script

COMPUTED = computed("again", ("z",), ("w",))


def again(rows, by):
    return {"w": [row + by for row in rows["z"]]}


def noted(key, step):
    return step


def rollout(run, e, step):
    actor, reward = run.groups("actor", "reward")
    batch = step.batch()
    batch = batch.union(actor.generate(batch))
    return batch.union(reward.inference(batch))


def loop(run, e):
    actor, critic = run.groups("actor", "critic")
    run.state.setdefault("by", 0.25)
    if SINCE < 1000:
        run.state.setdefault("made", [])  # the first version knows nothing of it
    for step in run.steps(prepare=rollout, lag=LAG):
        is_new = step.number >= SINCE
        batch = step.prepared.union(critic.inference(step.prepared))
        batch = batch.union(run.compute(toy_script.shifted, batch, run.state["by"] * (2 if is_new else 1)))
        run.once(noted, step.number)
        if is_new:
            batch = batch.union(run.compute(again, batch, 0.5))
            run.state["made"].append(step.number)
        loss = critic.update(batch).stats["loss"]
        run.once(noted, step.number)
        actor.update(batch.filter(list(batch.ids[1:])) if is_new else batch)
        run.state["by"] = (0.5 if is_new else 0.25) + 0.01 * loss
        step.log(loss=loss, new=is_new)


def recipe(experiment):
    return (*toy_script.recipe(experiment), *((COMPUTED,) if SINCE < 1000 else ()))


ALGORITHM = replace(toy_script.ALGORITHM, recipe=recipe, script=loop, made={**toy_script.ALGORITHM.made, "w": VECTORS})
"""


def written(path: Path, since: int, lag: int = 0) -> str:
    """The algorithm of a script that is the second version from a step on; 1000: it is the first alone."""
    path.write_text(TEXT.replace("SINCE", str(since)).replace("LAG", str(lag)))
    return f"{path}:ALGORITHM"

"""PPO as a script that draws several responses to each prompt, and learns from rewards that have been renamed."""

from dataclasses import replace
from typing import Any

from support import toy_script

from hpcrl.data.form import NUMBERS
from hpcrl.recipes import ppo
from hpcrl.recipes.algorithm import computed


def copied(rows: Any) -> Any:
    return {"copied_rewards": rows["rewards"]}


def recipe(experiment: Any) -> Any:
    return (*ppo.recipe(experiment), computed("copied", ("rewards",), ("copied_rewards",)))


def loop(run: Any, e: Any) -> None:
    actor, critic, reference, reward = run.groups("actor", "critic", "reference", "reward")
    for step in run.steps():
        batch = step.batch().repeat(2)
        batch = batch.union(actor.generate(batch))
        batch = batch.union(reward.score(batch))
        batch = batch.union(run.compute(copied, batch))
        batch = batch.pop("rewards")[1].rename({"copied_rewards": "rewards"})
        batch = batch.union(critic.values(batch, blocking=False), reference.logprobs(batch, blocking=False))
        critic.update(batch, blocking=False)
        actor.update(batch, blocking=False)
        if step.evaluates:
            held_out = step.held_out()
            reward.score(held_out.union(actor.generate(held_out)))


def toy(run: Any, e: Any) -> None:
    actor, critic, reward = run.groups("actor", "critic", "reward")
    for step in run.steps():
        batch = step.batch().repeat(2, interleave=False)
        halves = [part.union(actor.generate(part)) for part in batch.chunk(3)]
        batch = halves[0].concat(halves)
        twice = batch.union(run.compute(toy_script.shifted, batch, 0.25)).repeat(2)
        other = twice.rename({"z": "y", "y": "z"})
        scored = reward.inference(other)
        batch = twice.union(scored, critic.inference(twice, blocking=False))
        critic.update(batch, blocking=False)
        best = batch.filter([it[0] > 0 for it in batch.fetch("r")["r"]]) or batch
        step.log(loss=actor.update(best).stats["loss"], of_z=other.mean("y") - batch.mean("z"), samples=len(batch))


ALGORITHM: Any = replace(
    ppo.ALGORITHM, script=loop, recipe=recipe, made={**ppo.ALGORITHM.made, "copied_rewards": NUMBERS}
)
TOY: Any = replace(toy_script.ALGORITHM, script=toy)

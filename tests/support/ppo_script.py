"""PPO as a script that asks for what the graph says, and no more."""

from dataclasses import replace
from typing import Any

from hpcrl.recipes import ppo


def loop(run: Any, e: Any) -> None:
    actor, critic, reference, reward = run.groups("actor", "critic", "reference", "reward")
    for step in run.steps():
        batch = step.batch()
        batch = batch.union(actor.generate(batch))
        scores = reward.score(batch, blocking=False)
        values = critic.values(batch, blocking=False)
        logprobs = reference.logprobs(batch, blocking=False)
        batch = batch.union(scores, values, logprobs)
        critic.update(batch, blocking=False)
        actor.update(batch, blocking=False)
        if step.evaluates:
            held_out = step.held_out()
            reward.score(held_out.union(actor.generate(held_out)))


def rollout(run: Any, e: Any, step: Any) -> Any:
    actor, reward = run.groups("actor", "reward")
    batch = step.batch()
    batch = batch.union(actor.generate(batch))
    return batch.union(reward.score(batch))


def behind(run: Any, e: Any) -> None:
    """With responses that are drawn ahead."""
    actor, critic, reward = run.groups("actor", "critic", "reward")
    for step in run.steps(prepare=rollout, lag=e.lag):
        batch = step.prepared
        values = critic.values(batch, blocking=False)
        batch = batch.union(values, actor.logprobs(batch, blocking=False))
        critic.update(batch, blocking=False)
        actor.update(batch, blocking=False)
        if step.evaluates:
            held_out = step.held_out()
            reward.score(held_out.union(actor.generate(held_out)))


ALGORITHM: Any = replace(ppo.ALGORITHM, script=loop)
BEHIND: Any = replace(ppo.ALGORITHM, script=behind)

"""PPO as a script that computes advantages and moves the weight of the KL itself; else it asks as the graph says."""

from dataclasses import replace
from typing import Any

from hpcrl.controller.advantages import adapt_kl, advantages
from hpcrl.recipes import ppo


def loop(run: Any, e: Any) -> None:
    actor, critic, reference, reward = run.groups("actor", "critic", "reference", "reward")
    run.state.setdefault("beta", e.ppo.kl.coef)
    for step in run.steps():
        batch = step.batch()
        batch = batch.union(actor.generate(batch))
        values = critic.values(batch, blocking=False)
        logprobs = reference.logprobs(batch, blocking=False)
        batch = batch.union(reward.score(batch), values, logprobs)
        batch = batch.union(run.compute(advantages, batch, e.ppo, run.state["beta"]))
        critic.update(batch, blocking=False)
        learnt = actor.update(batch)
        step.log(apart=run.state["beta"] - learnt.stats["kl_coef"])
        counted = learnt.stats["counted"] * len(batch)
        run.state["beta"] = adapt_kl(e.ppo.kl, run.state["beta"], learnt.stats["kl"], counted)
        if step.evaluates:
            held_out = step.held_out()
            reward.score(held_out.union(actor.generate(held_out)))


ALGORITHM: Any = replace(ppo.IN_SCRIPT, script=loop)

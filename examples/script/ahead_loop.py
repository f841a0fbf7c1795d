"""PPO, all of it in the script: responses drawn ahead, advantages, the weight of the KL, and someone who is told."""

from dataclasses import replace

from hpcrl.controller.advantages import adapt_kl, advantages
from hpcrl.recipes import ppo
from hpcrl.recipes.policy import old_logprobs


def rollout(run, e, step):
    actor, reward = run.groups("actor", "reward")  # before its first call
    batch = step.batch()
    batch = batch.union(actor.generate(batch))
    return batch.union(reward.score(batch))


def announce(key, number, reward):
    print(f"{key}: step {number} has a reward of {reward:.3f}", flush=True)
    return {"stop": reward > 0.99}


def loop(run, e):
    actor, critic, reference, reward = run.groups("actor", "critic", "reference", "reward")
    run.state.setdefault("beta", e.ppo.kl.coef)
    for step in run.steps(prepare=rollout, lag=e.lag):
        batch = step.prepared  # what rollout returned
        batch = batch.union(critic.values(batch), reference.logprobs(batch))
        if old_logprobs(e) == "recomputed":  # with a lag, say
            batch = batch.union(actor.logprobs(batch))
        batch = batch.union(run.compute(advantages, batch, e.ppo, run.state["beta"]))
        critic.update(batch)
        learnt = actor.update(batch)
        counted = learnt.stats["counted"] * len(batch)
        run.state["beta"] = adapt_kl(e.ppo.kl, run.state["beta"], learnt.stats["kl"], counted)
        told = run.once(announce, step.number, batch.mean("rewards"), rehearsed={"stop": False})
        step.log(beta=run.state["beta"])
        if step.evaluates:
            held_out = step.held_out()
            held_out = held_out.union(actor.generate(held_out))
            step.log(held_out=reward.score(held_out).mean("rewards"))
        if told["stop"]:
            break


PPO = replace(ppo.IN_SCRIPT, script=loop)

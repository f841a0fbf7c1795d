"""PPO, the loop written out: each token of a response has a price, which rises while they are longer than wanted."""

from dataclasses import replace

import msgspec

from hpcrl.data.form import NUMBERS
from hpcrl.recipes import ppo
from hpcrl.recipes.algorithm import computed
from hpcrl.recipes.policy import old_logprobs


def priced(rows, price):
    pairs = zip(rows["rewards"], rows["responses"], strict=True)
    return {"priced_rewards": [reward - reward.dtype.type(price * len(response)) for reward, response in pairs]}


def recipe(e):
    """PPO's calls; those that train read the priced rewards in the place of the rewards."""
    return (*map(on_prices, ppo.recipe(e)), computed("priced", ("rewards", "responses"), ("priced_rewards",)))


def on_prices(call):
    if call.kind != "train_step":
        return call
    inputs = tuple("priced_rewards" if key == "rewards" else key for key in call.inputs)
    return msgspec.structs.replace(call, inputs=inputs, input_remap={"priced_rewards": "rewards"})


def rollout(run, e, step):  # where `lag` is set, beside the turn so many steps earlier
    actor, reward = run.groups("actor", "reward")
    batch = step.batch()
    drawn = actor.generate(batch)
    batch = batch.union(drawn)
    return batch.union(reward.score(batch)), drawn.stats["response_length"]


def loop(run, e):
    actor, critic, reference, reward = run.groups("actor", "critic", "reference", "reward")
    run.state.setdefault("price", 0.0)  # all that lives from step to step
    for step in run.steps(prepare=rollout, lag=e.lag):
        batch, length = step.prepared
        values = critic.values(batch)  # returns at once; whoever reads its rows waits
        ref = reference.logprobs(batch)
        if old_logprobs(e) == "recomputed":  # with a lag, say
            batch = batch.union(actor.logprobs(batch))
        batch = batch.union(values, ref, run.compute(priced, batch, run.state["price"]))
        fitted = critic.update(batch)
        if step.number > e.ppo.critic_warmup:
            actor.update(batch)
        run.state["price"] = max(0.0, run.state["price"] + 0.01 * (length - 4))
        if step.evaluates:
            held_out = step.held_out()
            held_out = held_out.union(actor.generate(held_out))
            step.log(held_out=reward.score(held_out).mean("rewards"))
        step.log(price=run.state["price"], value_loss=fitted.stats["loss"])  # late: until then calls overlap


PPO = replace(ppo.ALGORITHM, script=loop, recipe=recipe, made={**ppo.ALGORITHM.made, "priced_rewards": NUMBERS})

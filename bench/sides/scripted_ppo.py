"""PPO as a script that asks for what the graph says."""

from dataclasses import replace

from hpcrl.recipes import ppo


def loop(run, e):
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


ALGORITHM = replace(ppo.ALGORITHM, script=loop)

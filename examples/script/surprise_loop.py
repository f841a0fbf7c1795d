"""PPO with a method of one's own: the actor tells how unlikely each token was, and dull responses are left out."""

from dataclasses import replace

import numpy as np

from hpcrl.recipes import ppo
from hpcrl.recipes.algorithm import RoleKind
from hpcrl.recipes.registered import Dispatch, register


class Surprise:  # what the actor can do besides; imported without torch
    @register(Dispatch.MEGATRON_COMPUTE_PROTO, inputs=("prompts", "responses"), outputs={"surprise": "float32"})
    def surprise(self, rows, by):
        from hpcrl.engines.engine import Sequences

        sequences = Sequences.from_rows(rows["prompts"], rows["responses"])
        packed = self.engine.forward(sequences, self.experiment.generation.temperature)
        return {"surprise": np.split(-by * packed, np.cumsum(sequences.labels)[:-1])}


def actor(at):
    from hpcrl.algos.policy import Policy
    from hpcrl.algos.ppo import advantages

    class Actor(Surprise, Policy):
        pass

    return Actor(at.engine(), at.experiment, advantages)


def loop(run, e):
    actor, critic, reference, reward = run.groups("actor", "critic", "reference", "reward")
    for step in run.steps():
        batch = step.batch()
        batch = batch.union(actor.generate(batch))
        surprise = actor.surprise(batch, 1.0)
        batch = batch.union(reward.score(batch), critic.values(batch), reference.logprobs(batch), surprise)
        kept = [row.sum() > 0.01 for row in batch.fetch("surprise")["surprise"]]
        step.log(dull=1 - np.mean(kept), surprise=batch.mean("surprise"))
        if any(kept):
            batch = batch.filter(kept)
            critic.update(batch)
            actor.update(batch)
        if step.evaluates:
            held_out = step.held_out()
            held_out = held_out.union(actor.generate(held_out))
            step.log(held_out=reward.score(held_out).mean("rewards"))


ROLES = {**ppo.ALGORITHM.roles, "actor": RoleKind(f"{__name__}:actor", "vocabulary", methods=Surprise)}
PPO = replace(ppo.ALGORITHM, script=loop, roles=ROLES)

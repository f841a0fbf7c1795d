"""GRPO with an environment: whoever answers wrongly is told so, and may try again."""

from dataclasses import replace

from hpcrl.controller.dialogue import respond
from hpcrl.recipes import grpo


def loop(run, e):
    actor, environment, reward = run.groups("actor", "environment", "reward")
    for step in run.steps():
        batch = respond(actor, environment, step.batch(), e)  # turns of the model's, and answers between them
        batch = batch.union(reward.score(batch))  # a component of the reward is what the environment has given
        learnt = actor.update(batch)  # from the model's own tokens
        step.log(loss=learnt.stats["loss"])
        if step.evaluates:
            held_out = respond(actor, environment, step.held_out(), e)
            step.log(held_out=reward.score(held_out).mean("rewards"))


GRPO = replace(grpo.ALGORITHM, script=loop)

"""GRPO with a judge: a model is asked about each response, and its mark is a part of the reward."""

from dataclasses import replace

from hpcrl.recipes import grpo


def loop(run, e):
    actor, judge, reward = run.groups("actor", "judge", "reward")
    for step in run.steps():
        batch = step.batch()
        batch = batch.union(actor.generate(batch))
        batch = batch.union(judge.generate(batch))  # its marks, and what it said
        batch = batch.union(reward.score(batch))  # a component of the reward is the mark
        learnt = actor.update(batch)
        step.log(loss=learnt.stats["loss"])
        if step.evaluates:
            held_out = step.held_out()
            held_out = held_out.union(actor.generate(held_out))
            held_out = held_out.union(judge.generate(held_out))
            step.log(held_out=reward.score(held_out).mean("rewards"))


GRPO = replace(grpo.ALGORITHM, script=loop)

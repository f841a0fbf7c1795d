"""GRPO, the loop written out: it trains on the prompts whose responses differ in score, and on no others."""

from collections import defaultdict
from dataclasses import replace
from math import isnan

from hpcrl.data.order import group_of
from hpcrl.recipes import grpo


def loop(run, e):
    actor, reward = run.groups("actor", "reward")
    run.state.setdefault("trained", 0)  # all that lives from step to step
    for step in run.steps():
        batch = step.batch()
        batch = batch.union(actor.generate(batch))
        batch = batch.union(reward.score(batch))
        kept = batch.filter(differing(batch.ids, batch.fetch("rewards")["rewards"]))
        if len(kept):
            learnt = actor.update(kept)
            run.state["trained"] += len(kept)
            step.log(loss=learnt.stats["loss"])
        step.log(kept=len(kept) / len(batch), trained=run.state["trained"])
        if step.evaluates:
            held_out = step.held_out()
            held_out = held_out.union(actor.generate(held_out))
            step.log(held_out=reward.score(held_out).mean("rewards"))


def differing(ids, rewards):
    """The samples whose prompt has responses of different scores; a missing score is NaN, and differs from none."""
    scores = defaultdict(set)
    for name, row in zip(ids, rewards, strict=True):
        if not isnan(row[0]):
            scores[group_of(name)].add(float(row[0]))
    return [name for name in ids if len(scores[group_of(name)]) > 1]


GRPO = replace(grpo.ALGORITHM, script=loop)

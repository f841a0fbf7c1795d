"""The toy as a script whose steps are prepared ahead, by a lag; and as one that writes that out in its loop."""

from dataclasses import replace
from functools import partial
from typing import Any

from support import toy_script


def rollout(run: Any, e: Any, step: Any) -> Any:
    actor, reward = run.groups("actor", "reward")
    batch = step.batch()
    batch = batch.union(actor.generate(batch))
    batch = batch.union(reward.inference(batch))
    step.log(rollout=batch.mean("r"), noise=float(run.rng("rollout").random()))
    return batch.union(run.compute(toy_script.shifted, batch, run.state["by"]))


def loop(run: Any, e: Any, lag: int) -> None:
    run.state.setdefault("by", 0.25)
    for step in run.steps(prepare=rollout, lag=lag):
        learn(run, step, step.prepared)


def written_out(run: Any, e: Any) -> None:
    run.state.setdefault("by", 0.25)
    for step in run.steps():
        learn(run, step, rollout(run, e, step))


def learn(run: Any, step: Any, batch: Any) -> None:
    actor, critic = run.groups("actor", "critic")
    batch = batch.union(critic.inference(batch))
    fitted = critic.update(batch, blocking=False)
    if step.number != 3:
        run.state["by"] += 0.001 * actor.update(batch).stats["loss"]
    step.log(by=run.state["by"], loss=fitted.result().stats["loss"])


def leaving(run: Any, e: Any) -> None:
    """Leaves its loop in the second turn, while others are prepared."""
    run.state.setdefault("by", 0.25)
    for step in run.steps(prepare=rollout, lag=2):
        learn(run, step, step.prepared)
        if step.number == 2:
            break


def leaving_at_once(run: Any, e: Any) -> None:
    """The same without a lag."""
    run.state.setdefault("by", 0.25)
    for step in run.steps(prepare=rollout):
        learn(run, step, step.prepared)
        if step.number == 2:
            break


def algorithm(script: Any) -> Any:
    return replace(toy_script.ALGORITHM, script=script)


WRITTEN_OUT, LEAVING, LEAVING_AT_ONCE = algorithm(written_out), algorithm(leaving), algorithm(leaving_at_once)
LAG_0, LAG_1, LAG_2, LAG_3 = (algorithm(partial(loop, lag=lag)) for lag in range(4))

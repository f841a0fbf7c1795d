"""Toy scripts drawn at random: which calls a turn makes, on which rows, how often, what it waits for and remembers; how
far ahead it prepares its steps, which methods of its own roles it calls, and what it does outside of the run."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
from support import registered_script, toy_script

from hpcrl.controller.results import Future
from hpcrl.recipes.registered import Dispatch, register
from hpcrl.workers.toy import ToyRole


class Critic(ToyRole):
    """A toy role with methods of its own."""

    @register(Dispatch.PP_AS_DP_PROTO, inputs=("y",), outputs={"halved": "float64"})
    def halve(self, rows: Any) -> Any:
        return {"halved": [0.5 * row for row in rows["y"]]}

    @register(Dispatch.ONE_TO_ALL, rehearsed=0.0)
    def weight(self, by: float) -> Any:
        return by * float(np.sum(self.w))


def prepared(run: Any, e: Any, step: Any) -> Any:
    (actor,) = run.groups("actor")
    draw = run.rng("prepared")
    if draw.integers(2):
        run.once(noted, run.state["by"], rehearsed=0.0)
    batch = step.batch()
    if draw.integers(3) == 0:
        batch = batch.repeat(2, interleave=bool(draw.integers(2)))
    return [part.union(actor.generate(part, blocking=_waits(draw))) for part in _cut(batch, draw)]


def noted(key: str, by: float) -> float:
    return by


def loop(run: Any, e: Any) -> None:
    actor, critic = run.groups("actor", "critic")
    run.state.setdefault("by", 0.25)
    for step in run.steps(prepare=prepared, lag=int(run.rng("lag").integers(4))):
        draw, parts = run.rng("course"), step.prepared
        waiting: list[Any] = []
        for _ in range(draw.integers(1, 4)):
            batch = _scored(run, _drawn(parts, draw), draw)
            if draw.integers(2):
                batch = batch.filter([row[0] > 0 for row in batch.fetch("r")["r"]]) or batch
            for role in (actor, critic):
                if draw.integers(2):
                    waiting.append(role.update(batch, blocking=_waits(draw)))
        if draw.integers(3) == 0:
            _until_good(run, parts[0])
        if waiting and draw.integers(2):
            run.state["by"] = 0.5 * run.state["by"] + 1e-3 * _loss(waiting[draw.integers(len(waiting))])
        if draw.integers(2):
            step.log(noted=run.once(noted, run.state["by"], rehearsed=0.0))
        if draw.integers(2):
            step.log(by=run.state["by"], calls=len(waiting), drawn=random.random() + np.random.random())
        if step.evaluates and draw.integers(2):
            _evaluate(run, step)
        run.state.setdefault("course", []).append({"step": step.number, "updates": len(waiting)})
        if step.number > 2 and draw.integers(12) == 0:
            break


def _drawn(parts: list[Any], draw: Any) -> Any:
    """A part or all of them, in some order."""
    batch = parts[draw.integers(len(parts))] if draw.integers(2) else parts[0].concat(parts)
    if draw.integers(2):
        batch = batch.reorder([int(place) for place in draw.permutation(len(batch))])
    return batch.repeat(2) if draw.integers(4) == 0 else batch


def _scored(run: Any, batch: Any, draw: Any) -> Any:
    """With all that updates read; of rewards it has those of the responses, or of what was computed of them."""
    critic, reward = run.groups("critic", "reward")
    values = critic.inference(batch, blocking=_waits(draw))
    batch = batch.union(values, run.compute(toy_script.shifted, batch, run.state["by"]))
    judged = batch.pop("v")[1].rename({"z": "y", "y": "z"}) if draw.integers(3) == 0 else batch
    scores = reward.inference(judged, blocking=_waits(draw))
    if draw.integers(3) == 0:
        batch = _methods(run, batch, draw)
    return batch.union(scores)


def _methods(run: Any, batch: Any, draw: Any) -> Any:
    """Calls some of the roles' own."""
    actor, critic = run.groups("actor", "critic")
    by = float(draw.integers(1, 4))
    doubled = actor.double(batch, by, blocking=_waits(draw))
    told, weights = actor.told("a", int(by), blocking=False), critic.weight(by)
    gaps = actor.gaps(batch.select("y").union(doubled))
    run.state["methods"] = [weights, [word for word, _ in told.result()], gaps.mean("gap")]
    if draw.integers(2):
        run.state["by"] += 1e-3 * critic.halve(batch).mean("halved")
    if draw.integers(2):
        run.state["own"] = len(actor.by_ends(batch)) if len(batch) > 2 else 0
    return batch.union(doubled, gaps)


def _until_good(run: Any, part: Any) -> None:
    """Draws again until rewards are good enough, which depends on the role."""
    actor, reward = run.groups("actor", "reward")
    tries, part = 0, part.select("x")
    while tries < 3 and reward.inference(part.union(actor.generate(part))).mean("r") < run.state["by"]:
        tries += 1
        part = part[: max(len(part) - 1, 1)]
    run.state["tries"] = run.state.get("tries", 0) + tries


def _evaluate(run: Any, step: Any) -> None:
    actor, reward = run.groups("actor", "reward")
    held_out = step.held_out()
    step.log(held_out=reward.inference(held_out.union(actor.generate(held_out))).mean("r"))


def _waits(draw: Any) -> bool | None:
    """Whether a call is waited for, goes on as any does, or gives a future."""
    return (None, True, False)[draw.integers(3)]


def _loss(update: Any) -> float:
    return float((update.result() if isinstance(update, Future) else update).stats["loss"])


def _cut(batch: Any, draw: Any) -> list[Any]:
    return list(batch.chunk(int(draw.integers(1, 4))))


AXES = toy_script.ALGORITHM.roles["actor"].axes
METHODS = {
    "actor": replace(registered_script.METHODS["actor"], axes=AXES),
    "critic": replace(registered_script.METHODS["critic"], maker=f"{__name__}:Critic", methods=Critic, axes=AXES),
}
ALGORITHM: Any = replace(toy_script.ALGORITHM, script=loop, roles={**toy_script.ALGORITHM.roles, **METHODS})

"""Toy scripts drawn at random: which calls a turn makes, on which rows, how often, what it waits for and remembers; how
far ahead it prepares its steps, and what it does outside of the run."""

from dataclasses import replace
from typing import Any

from support import toy_script


def prepared(run: Any, e: Any, step: Any) -> Any:
    (actor,) = run.groups("actor")
    draw = run.rng("prepared")
    if draw.integers(2):
        run.once(noted, run.state["by"], rehearsed=0.0)
    return [part.union(actor.generate(part, blocking=bool(draw.integers(2)))) for part in _cut(step.batch(), draw)]


def noted(key: str, by: float) -> float:
    return by


def loop(run: Any, e: Any) -> None:
    actor, critic, reward = run.groups("actor", "critic", "reward")
    run.state.setdefault("by", 0.25)
    for step in run.steps(prepare=prepared, lag=int(run.rng("lag").integers(4))):
        draw, parts = run.rng("course"), step.prepared
        waiting = []
        for _ in range(draw.integers(1, 4)):
            batch = parts[draw.integers(len(parts))] if draw.integers(2) else parts[0].concat(parts)
            if draw.integers(2):
                batch = batch.reorder([int(place) for place in draw.permutation(len(batch))])
            blocking = bool(draw.integers(2))
            values, scores = critic.inference(batch, blocking=blocking), reward.inference(batch, blocking=False)
            batch = batch.union(values, scores, run.compute(toy_script.shifted, batch, run.state["by"]))
            if draw.integers(2):
                batch = batch.filter([row[0] > 0 for row in batch.fetch("r")["r"]]) or batch
            for role in (actor, critic):
                if draw.integers(2):
                    waiting.append(role.update(batch, blocking=False))
        if waiting and draw.integers(2):
            run.state["by"] = 0.5 * run.state["by"] + 1e-3 * waiting[draw.integers(len(waiting))].result().stats["loss"]
        if draw.integers(2):
            step.log(noted=run.once(noted, run.state["by"], rehearsed=0.0))
        if draw.integers(2):
            step.log(by=run.state["by"], calls=len(waiting))
        if step.evaluates and draw.integers(2):
            held_out = step.held_out()
            step.log(held_out=reward.inference(held_out.union(actor.generate(held_out))).mean("r"))


def _cut(batch: Any, draw: Any) -> list[Any]:
    return list(batch.chunk(int(draw.integers(1, 4))))


ALGORITHM: Any = replace(toy_script.ALGORITHM, script=loop)

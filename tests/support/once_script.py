"""A toy's script that writes to a file outside of its run: a line for each time that it does so."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from support import toy_script

FILE = "HPCRL_TEST_SENT"


def send(key: str, step: int, score: float) -> dict[str, Any]:
    with open(Path(os.environ[FILE]), "a", encoding="utf-8") as file:
        file.write(json.dumps([key, step, score]) + "\n")
    return {"step": step, "taken": [score]}


def loop(run: Any, e: Any) -> None:
    actor, critic, reward = run.groups("actor", "critic", "reward")
    run.state.setdefault("by", 0.25)
    for step in run.steps():
        batch = step.batch()
        batch = batch.union(actor.generate(batch))
        scored = reward.inference(batch)
        batch = batch.union(scored, critic.inference(batch, blocking=False))
        sent = run.once(send, step.number, scored.mean("r"), rehearsed={"taken": [0.0]})
        batch = batch.union(run.compute(toy_script.shifted, batch, run.state["by"]))
        fitted = critic.update(batch, blocking=False)
        run.once(send, step.number, run.state["by"], rehearsed=None)
        run.state["by"] += 0.001 * sent["taken"][0]
        step.log(by=run.state["by"], loss=fitted.result().stats["loss"])


ALGORITHM: Any = replace(toy_script.ALGORITHM, script=loop)

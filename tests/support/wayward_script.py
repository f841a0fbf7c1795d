"""A toy's script that does as the environment says: what no script should do. It waits for each call, so that
whoever strikes it at an ask knows which lines there are."""

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from support import toy_script

MOOD = "HPCRL_TEST_MOOD"
FILE = "HPCRL_TEST_FILE"
OUTSIDE: dict[str, Callable[[], float]] = {
    "a clock": time.time,
    "how long it has run": time.monotonic,
    "its process": lambda: float(os.getpid()),
    "a number of the system's": lambda: float(secrets.randbelow(1 << 30)),
    "a file": lambda: float(Path(os.environ[FILE]).read_text()),
    "a variable of the environment": lambda: float(len(os.environ[FILE])),
}
"""What decides in such a mood: other things when it runs again."""


def loop(run: Any, e: Any) -> None:
    mood = os.environ.get(MOOD, "")
    actor, critic, reward = run.groups("actor", "critic", "reward")
    run.state.setdefault("by", 0.25)
    for step in run.steps():
        if mood == "ends its process":
            os._exit(3)
        if mood == "forks":
            _fork()
        batch = step.batch()
        batch = batch.union(actor.generate(batch, blocking=True))
        if mood == "other call":
            batch.union(critic.inference(batch, blocking=True))
        part = batch.filter(list(batch.ids[1:])) if mood == "other rows" else batch
        batch = part.union(reward.inference(part, blocking=True), critic.inference(part, blocking=True))
        by = OUTSIDE[mood]() if mood in OUTSIDE else 0.5 if mood == "other number" else run.state["by"]
        batch = batch.union(run.compute(toy_script.shifted, batch, by))
        critic.update(batch, blocking=True)
        if mood != "ends early":
            actor.update(batch, blocking=True)
        if mood == "one more":
            critic.update(batch, blocking=True)
        run.state["by"] = 0.125 if mood == "other state" else e.toy.lr + step.number
        if mood == "much":
            run.state["much"] = "x" * (300_000 * min(step.number, 3))
        step.log(lr=0.5 if mood == "other log" else e.toy.lr)
    if mood == "hangs late":
        time.sleep(3600)
    if mood in ("ends late", "fails late"):
        time.sleep(1.5)  # by then all is saved
        assert mood == "ends late"
        Path(os.environ[FILE]).write_text("done")


def _fork() -> None:
    """A process of its own ends as it wants to."""
    child = os.fork()
    if not child:
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


ALGORITHM: Any = replace(toy_script.ALGORITHM, script=loop)

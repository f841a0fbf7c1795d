"""How long a PPO run of the demo stands still when a worker of it is killed."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from demo_runs import ROOT, environment, events_of, hpcrl, last_demo, moment
from figures import Figure, median

from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.reader import RunReader

KILLS = 5
FIRST_STEPS = 5
PATIENCE_S = 120.0


def recovery(work: Path, demos: Path) -> list[Figure]:
    demo = last_demo(demos).root.parent
    kills = struck(work, demo, max((demo / "sft/export/actor").glob("step-*")))
    parts = {name: median([kill[name] for kill in kills]) for name in kills[0]}
    detail = (
        f"{KILLS} kills, {min(kill['total'] for kill in kills):.1f} … {max(kill['total'] for kill in kills):.1f} s; "
        f"medians: {parts['noticed']:.1f} s until an attempt begins, {parts['ready']:.1f} s until all workers are "
        f"ready, {parts['replays']:.0f} train steps replayed"
    )
    return [Figure("from SIGKILL of a worker to the next train step", parts["total"], "s", "≤ 5", detail)]


def struck(work: Path, data: Path, model: Path, *more: str) -> list[dict[str, float]]:
    """PPO on a folder's sums from a model, with more settings, whose workers are killed one after another."""
    run = RunDirectory(work / time.strftime("run-%Y%m%d-%H%M%S"))
    told = ["--data.train", str(data / "train.jsonl"), "--data.evaluate", str(data / "test.jsonl")]
    told += [word for role in ("actor", "critic", "reference") for word in (f"--{role}.path", str(model))]
    recipe = str(ROOT / "examples/addition/ppo.yaml")
    command = hpcrl("submit", recipe, "--run-dir", str(run.root), "--control.steps", "1000", *told, *more)
    with (work / "submit.log").open("w") as log:
        submitted = subprocess.Popen(command, stdout=log, stderr=log, env=environment())
        try:
            wait_for_step(run, since=0.0, least=FIRST_STEPS)
            dice = random.Random(0)
            return [kill_and_wait(run, dice) for _ in range(KILLS)]
        finally:
            subprocess.run(hpcrl("stop", str(run.root), "--now"), stdout=log, stderr=log, env=environment())
            submitted.wait(60)


def kill_and_wait(run: RunDirectory, dice: random.Random) -> dict[str, float]:
    """Kill a worker, some time after the last step; when it was noticed, made good, and passed."""
    time.sleep(dice.uniform(1.0, 6.0))
    killed = time.time()
    os.kill(dice.choice(_workers(run)), signal.SIGKILL)
    stepped = wait_for_step(run, killed)
    after = [row for row in events_of(run) if row["time"] > killed]
    replays = sum(replay for at, _, replay in trained_in(run) if at > killed)
    began, ready = moment(after, "attempt", min), moment(after, "ready", min)
    return {"total": stepped - killed, "noticed": began - killed, "ready": ready - began, "replays": replays}


def wait_for_step(run: RunDirectory, since: float, least: int = 0) -> float:
    """When the actor's next train step that is not a replay was executed, after a new attempt or `least` steps."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        ready = [row["time"] for row in events_of(run) if row["event"] == "ready" and row["time"] > since]
        trained = (at for at, step, replay in trained_in(run) if not replay and step >= least and at > min(ready))
        if ready and (first := min(trained, default=None)) is not None:
            return first
        time.sleep(0.1)
    raise TimeoutError(f"no train step within {PATIENCE_S:g} s")


def trained_in(run: RunDirectory) -> Iterator[tuple[float, int, bool]]:
    """When the actor's train steps were executed, of which steps, and whether again; known a second later at most."""
    for attempt in RunReader(run).attempts.values():
        began = attempt.activity.began or 0.0
        made = (it for it in attempt.made() if it.call == "actor_train")
        yield from ((began + it.span.ended_s, it.step, it.span.replay) for it in made)


def _workers(run: RunDirectory) -> list[int]:
    """Process ids of the workers that are alive: who writes to a worker's output file."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/1"):
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if target.startswith(str(run.root)) and "/logs/worker-" in target:
            found.append(int(link.parts[2]))
    return found

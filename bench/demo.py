"""The demo of examples/addition, measured: what it learns, what durability costs, how fast it goes on after a kill."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from figures import Figure, median

from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.lines import Row, Tail
from hpcrl.inspect.metrics import merged_metrics, series

ROOT = Path(__file__).parent.parent
SEEDS = (1, 2, 3)
ACCURACY = "eval_rew/accuracy"
KILLS = 5
PATIENCE_S = 120.0
TEN_KILLS = (
    "tests/examples/test_addition_killed.py::test_ppo_killed_ten_times_at_random_moments_ends_with_the_same_bits"
)

HOW = (
    "What `make demo` runs: data, tokenizer and a model from nothing, a short SFT, then PPO with two workers. Greedy "
    "accuracy on 500 held-out sums before and after PPO; wall time of the PPO run from its first event to its last."
)
HOW_DURABLE = (
    "From the events of the last seed's PPO run. Waited for durability: all time that the master spent in appending "
    "to the journal (it neither hears nor sends then), and all time that a step could have opened, were it not for "
    "older steps that were not closed. An upper bound: what a worker computes meanwhile is not taken off."
)
HOW_RECOVERED = (
    "A PPO run of the demo; one worker is killed with SIGKILL at random moments. Until the actor's next train step "
    "that is not a replay has been executed: the loss is noticed, an attempt begins with workers forked anew, roles "
    "are loaded, train steps after the checkpoint are replayed, and the step goes on from its finished calls."
)


# ── learning ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def learning(work: Path) -> list[Figure]:
    return [figure for seed in SEEDS for figure in _learned(work, seed)] + [_killed_ten_times()]


def _learned(work: Path, seed: int) -> list[Figure]:
    run = _demo(work / time.strftime(f"seed-{seed}-%Y%m%d-%H%M%S"), seed)
    rows = merged_metrics(run)
    steps, accuracy = series(rows, ACCURACY)
    times = [row["time"] for row in _events(run)]
    what = f"seed {seed}: accuracy"
    length = f"after {rows[-1]['step']} steps; first above 0.75 at step {_first_above(steps, accuracy, 0.75)}"
    return [
        Figure(f"{what} before PPO", accuracy[0], "", "≤ 0.5"),
        Figure(f"{what} at its end", accuracy[-1], "", "≥ 0.75", length),
        Figure(f"seed {seed}: wall time of PPO", max(times) - min(times), "s", "≤ 300"),
    ]


def _first_above(steps: Sequence[int], values: Sequence[float], bound: float) -> int | str:
    return next((step for step, value in zip(steps, values, strict=True) if value >= bound), "–")


def _demo(work: Path, seed: int) -> RunDirectory:
    """The demo from nothing; its PPO run."""
    work.parent.mkdir(parents=True, exist_ok=True)
    with work.with_suffix(".log").open("w") as log:
        command = [str(ROOT / "examples/addition/demo.sh"), str(work)]
        subprocess.run(command, check=True, stdout=log, stderr=log, env=_environment() | {"SEED": str(seed)})
    return RunDirectory(work / "ppo")


def _killed_ten_times() -> Figure:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TEN_KILLS]
    done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True)
    last = done.stdout.strip().splitlines()[-1]
    what = "runs of 25 steps, killed 10 times at random moments, whose bits differ from an undisturbed one's"
    return Figure(what, float(done.returncode != 0), "of 1", "≤ 0", f"the test says: {last.strip('= ')}")


# ── durability ────────────────────────────────────────────────────────────────────────────────────────────────────────
def durability(work: Path) -> list[Figure]:
    run = _last_demo(work)
    events = list(_events(run))
    journal = [row["seconds"] for row in events if row["event"] == "journalled"]
    span = _time(events, "closed", max) - _time(events, "opened", min)
    steps = sum(row["event"] == "closed" for row in events)
    waits = list(_waits_to_open(events))
    share = 100 * (sum(journal) + sum(waits)) / span
    spilled = [row["seconds"] for row in events if row["event"] == "spilled"]
    return [
        Figure(
            "time waited for durability, of all step time",
            share,
            "%",
            "≤ 5",
            f"{sum(journal):.2f} s in {len(journal)} appends and {sum(waits):.2f} s for older steps, "
            f"of {span:.0f} s in {steps} steps",
        ),
        Figure("an append to the journal, with fsync", median(journal) * 1e3, "ms", "", _most(journal)),
        Figure("a spill, behind the work", median(spilled) * 1e3, "ms", "", _most(spilled)),
    ]


def _most(seconds: Sequence[float]) -> str:
    return f"median of {len(seconds)}; the longest {max(seconds) * 1e3:.1f} ms"


def _waits_to_open(events: Sequence[Row]) -> Iterator[float]:
    """From the moment when the step before had nothing left to execute until a step opened."""
    executed: dict[int, float] = {}
    for row in events:
        if row["event"] == "executed":
            executed[row["step"]] = max(row["time"], executed.get(row["step"], 0.0))
        elif row["event"] == "opened" and row["step"] - 1 in executed:
            yield max(0.0, row["time"] - executed[row["step"] - 1])


def _time(events: Sequence[Row], event: str, pick: Any) -> float:
    return pick(row["time"] for row in events if row["event"] == event)


# ── recovery ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def recovery(work: Path) -> list[Figure]:
    demo = _last_demo(work).root.parent
    model = max((demo / "sft/export/actor").glob("step-*"))
    run = RunDirectory(work / time.strftime("killed-%Y%m%d-%H%M%S"))
    roles = [word for role in ("actor", "critic", "reference") for word in (f"--{role}.path", str(model))]
    data = ["--data.train", str(demo / "train.jsonl"), "--data.evaluate", str(demo / "test.jsonl")]
    submit = ["submit", str(ROOT / "examples/addition/ppo.yaml"), "--run-dir", str(run.root), "--control.steps", "1000"]
    with (work / "submit.log").open("w") as log:
        submitted = subprocess.Popen(_hpcrl(*submit, *data, *roles), stdout=log, stderr=log, env=_environment())
        try:
            _wait_for_step(run, time.time(), least=5)
            dice = random.Random(0)
            kills = [_kill_and_wait(run, dice) for _ in range(KILLS)]
        finally:
            subprocess.run(_hpcrl("stop", str(run.root), "--now"), stdout=log, stderr=log, env=_environment())
            submitted.wait(60)
    parts = {name: median([kill[name] for kill in kills]) for name in kills[0]}
    detail = (
        f"{KILLS} kills, the longest {max(kill['total'] for kill in kills):.1f} s; medians: "
        f"{parts['noticed']:.1f} s until an attempt begins, {parts['ready']:.1f} s until all workers are ready, "
        f"{parts['replays']:.0f} train steps replayed"
    )
    return [Figure("from SIGKILL of a worker to the next train step", parts["total"], "s", "≤ 5", detail)]


def _kill_and_wait(run: RunDirectory, dice: random.Random) -> dict[str, float]:
    """Kill a worker, a random time after the last step; when it was noticed, made good, and passed."""
    time.sleep(dice.uniform(1.0, 6.0))
    os.kill(dice.choice(_workers(run)), signal.SIGKILL)
    killed = time.time()
    stepped = _wait_for_step(run, killed)
    after = [row for row in _events(run) if row["time"] > killed]
    replays = sum(row["event"] == "executed" and row["replay"] for row in after)
    began, ready = _time(after, "attempt", min), _time(after, "ready", min)
    return {"total": stepped - killed, "noticed": began - killed, "ready": ready - began, "replays": replays}


def _wait_for_step(run: RunDirectory, since: float, least: int = 0) -> float:
    """When the actor's next train step was executed for the first time."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for row in _events(run):
            trained = row["event"] == "executed" and row["call"] == "actor_train" and not row["replay"]
            if trained and row["time"] > since and row["step"] >= least:
                return row["time"]
        time.sleep(0.1)
    raise TimeoutError(f"{run.root}: no train step within {PATIENCE_S:g} s")


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


# ── runs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
def _last_demo(work: Path) -> RunDirectory:
    """The newest demo that has been measured."""
    found = sorted((work.parent / "demo").glob("seed-*/ppo"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise FileNotFoundError("the demo has not been measured: python bench/run.py demo")
    return RunDirectory(found[-1])


def _events(run: RunDirectory) -> Iterator[Row]:
    """The master's events, attempt by attempt."""
    for attempt in run.numbers():
        yield from Tail(run.events(attempt)).rows()


def _hpcrl(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hpcrl.cli.main", *arguments]


def _environment() -> dict[str, str]:
    """With the project's own interpreter first."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

"""The demo of examples/addition: what it learns, on three seeds, and what ten kills do to its bits."""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from demo_runs import ROOT, environment, events_of
from figures import Figure

from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.metrics import series
from hpcrl.inspect.reader import merged_metrics

SEEDS = (1, 2, 3)
ACCURACY = "eval_rew/accuracy"
TEN_KILLS = (
    "tests/examples/test_addition_killed.py::test_ppo_killed_ten_times_at_random_moments_ends_with_the_same_bits"
)


def learning(work: Path) -> list[Figure]:
    return [figure for seed in SEEDS for figure in _learned(work, seed)]


def _learned(work: Path, seed: int) -> list[Figure]:
    run = _demo(work / time.strftime(f"seed-{seed}-%Y%m%d-%H%M%S"), seed)
    rows = merged_metrics(run)
    steps, accuracy = series(rows, ACCURACY)
    times = [row["time"] for row in events_of(run)]
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
        subprocess.run(command, check=True, stdout=log, stderr=log, env=environment() | {"SEED": str(seed)})
    return RunDirectory(work / "ppo")


def killed_ten_times() -> list[Figure]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TEN_KILLS]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    said = done.stdout.strip().splitlines()
    wrong = next((line[1:].strip() for line in said if line.startswith("E ")), "")
    what = "runs killed 10 times at random moments whose bits differ from an undisturbed one's"
    detail = f"the test says: {wrong or said[-1].strip('= ')}"
    return [Figure(what, float(done.returncode != 0), "of 1", "≤ 0", detail)]

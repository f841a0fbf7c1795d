"""Does the demo learn, whatever the seed? Runs examples/addition/demo.sh once per seed; one JSON line per figure."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.metrics import merged_metrics, series
from hpcrl.inspect.view import RunView

DEMO = Path(__file__).parents[1] / "examples" / "addition" / "demo.sh"
ACCURACY = "eval_rew/accuracy"
ENOUGH = 0.75


def run_demo(seed: int, work: Path) -> list[dict[str, object]]:
    """The figures of one seed."""
    started = time.perf_counter()
    environment = os.environ | {"SEED": str(seed)}
    ended = subprocess.run([DEMO, work], env=environment, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(f"the demo ended with {ended.returncode}:\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    seconds = time.perf_counter() - started
    run = RunDirectory.open(work / "ppo")
    steps, accuracies = series(merged_metrics(run), ACCURACY)
    enough = next((step for step, value in zip(steps, accuracies, strict=True) if value >= ENOUGH), None)
    figures = [
        ("held-out accuracy before PPO", accuracies[0], "<= 0.5"),
        ("held-out accuracy after PPO", accuracies[-1], ">= 0.75"),
        (f"first step with an accuracy of {ENOUGH}", enough, "<= 300"),
        ("seconds of PPO", round(RunView(run).seconds, 1), "<= 300"),
        ("seconds of the whole demo", round(seconds, 1), None),
    ]
    return [{"name": f"demo, seed {seed}: {name}", "value": value, "target": target} for name, value, target in figures]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory() as folder:
            for figure in run_demo(seed, Path(folder) / "demo"):
                print(json.dumps(figure), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

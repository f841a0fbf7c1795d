"""What a step takes in which responses are drawn beside training, over the longer of both: by rows of costs."""

import shutil
import subprocess
from pathlib import Path

import shares
from demo_runs import ROOT, environment, hpcrl
from figures import Figure, median
from spans import length, united

from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.reader import RunReader

STEPS, ROUNDS, FIRST = 10, 3, 3
"""The steps before warm up, and fill what runs ahead."""
DRAWS, TRAINS = 0, 1
"""The workers."""
SETTINGS = shares.SETTINGS | {
    "cluster.workers_per_node": 2,
    "lag": 1,
    "ppo.importance_cap": 2,
    "reward.function": "gsm8k",
    "reward.trial_rows": 0,
    "control.steps": STEPS,
    "calls": f"{{actor_gen: {{mesh: {DRAWS}}}}}",
    **dict.fromkeys(("actor.mesh", "critic.mesh", "reference.mesh"), TRAINS),
}


def lagged(work: Path) -> list[Figure]:
    shutil.rmtree(work, ignore_errors=True)
    shares.write_inputs(work)
    found = [_over_longer(_ended(work, f"run-{number}")) for number in range(ROUNDS)]
    each = ", ".join(f"{step:.2f} : {drawn:.2f} and {trained:.2f}" for step, drawn, trained in found)
    ratio = median([step / max(drawn, trained) for step, drawn, trained in found])
    what = "a step with a lag of 1 over its rollout or its training, whichever is longer"
    return [Figure(what, ratio, "×", "≤ 1.08", f"seconds of a step, and of what either worker computed in it: {each}")]


def _ended(work: Path, name: str) -> RunDirectory:
    values = {key: value for key, value in SETTINGS.items() if not key.startswith("reward_model")}
    values |= {"data.train": work / "rows.jsonl", "actor.path": work / "model", "critic.path": work / "model"}
    (work / "ppo.yaml").write_text("algorithm: ppo\n")
    command = hpcrl("submit", str(work / "ppo.yaml"), "--cluster", "local", "--run-dir", str(work / name))
    command += [f"--{key}={value}" for key, value in values.items()]
    subprocess.run(command, cwd=ROOT, env=environment(), check=True, stdout=subprocess.DEVNULL)
    return RunDirectory.open(work / name)


def _over_longer(run: RunDirectory) -> tuple[float, float, float]:
    """Seconds of a step in the steady state, and those in which each of the two workers was at something in it."""
    attempt = RunReader(run).attempts[0]
    closed = [row.at_s for row in attempt.costs()][FIRST - 1 :]
    whole, steps = (closed[0], closed[-1]), len(closed) - 1
    made = list(attempt.made())
    calls = {rank: [it.span for it in made if rank in it.ranks and "@" not in it.call] for rank in (DRAWS, TRAINS)}
    moves = list(shares.moves(made, calls))

    def busy(rank: int) -> float:
        spans = united([*map(shares.busy, calls[rank]), *moves])
        return length(shares.within(spans, whole)) / steps

    return (whole[1] - whole[0]) / steps, busy(DRAWS), busy(TRAINS)

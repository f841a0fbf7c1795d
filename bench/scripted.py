"""What it costs that an algorithm is a script: a step over that of its graph, a recorded call over a live one."""

import json
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from demo_runs import ROOT, environment, events_of, hpcrl
from figures import Figure, median

from hpcrl.durable.rundir import RunDirectory

STEPS, ROUNDS = 14, 3
FIRST = 4
"""The steps before warm up."""


def scripted(work: Path) -> list[Figure]:
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    return [_steps(work), *_calls(work)]


def _steps(work: Path) -> Figure:
    """PPO of examples/addition, from a model with random parameters, the two in turn."""
    subprocess.run([sys.executable, "examples/addition/make_data.py", "--out", str(work)], cwd=ROOT, check=True)
    text = (ROOT / "examples/addition/ppo.yaml").read_text()
    found: dict[str, list[float]] = {"graph": [], "script": []}
    for number in range(ROUNDS):
        for side in ("graph", "script") if number % 2 == 0 else ("script", "graph"):
            algorithm = "ppo" if side == "graph" else f"{ROOT}/tests/support/ppo_script.py:ALGORITHM"
            (work / "ppo.yaml").write_text(text.replace("algorithm: ppo", f"algorithm: {algorithm}"))
            run = work / f"{side}-{number}"
            given = {
                "run-dir": run,
                "data.train": work / "train.jsonl",
                "data.evaluate": "null",
                "actor.path": work / "model",
                "critic.path": work / "model",
                "control.steps": STEPS,
                "control.evaluate.steps": "null",
                "control.checkpoint.seconds": 1000,
            }
            words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
            _hpcrl("submit", str(work / "ppo.yaml"), "--cluster", "local", *words)
            closed = [row["time"] for row in events_of(RunDirectory(run)) if row["event"] == "closed"]
            found[side].append(median([after - before for before, after in pairwise(closed[FIRST:])]))
    ratio = median([script / graph for script, graph in zip(found["script"], found["graph"], strict=True)])
    each = ", ".join(f"{s:.3f} : {g:.3f}" for s, g in zip(found["script"], found["graph"], strict=True))
    return Figure("a PPO step of a script over that of its graph", ratio, "×", "≤ 1.02", f"seconds: {each}")


def _calls(work: Path) -> list[Figure]:
    """The script fails in its second turn, once its calls are on disk, and asks for them again when it is resumed."""
    algorithm = f"{ROOT}/bench/sides/scripted_calls.py:ALGORITHM"
    control = {"steps": 2, "rehearse": False}  # it fails on purpose
    settings = {"algorithm": algorithm, "cluster": {"device": "cpu", "workers_per_node": 4}, "control": control}
    (work / "calls.yaml").write_text(json.dumps(settings))
    run = work / "calls"
    _hpcrl("submit", str(work / "calls.yaml"), "--cluster", "local", "--run-dir", str(run), folder=work, code=66)
    _hpcrl("resume", str(run), folder=work)
    times = [float(line) for line in (work / "seconds").read_text().split()]
    live, again = times[1], times[-1]
    return [
        Figure("a call that is recorded over a live one, of 8 rows on 4 workers", again / live, "×", "≤ 0.3"),
        Figure("the live call, from the ask until its rows are there", 1e3 * live, "ms"),
    ]


def read_rows(work: Path) -> list[Figure]:
    """What comes to the script's process beside the rows that it, or its computation, asks for."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    settings = {
        "algorithm": f"{ROOT}/bench/sides/scripted_rows.py:ALGORITHM",
        "cluster": {"device": "cpu", "workers_per_node": 4},
        "control": {"steps": 3, "rehearse": False},  # it writes into a file
        "toy": {"width": 1024, "rows": 256, "batch_size": 256},
    }
    (work / "rows.yaml").write_text(json.dumps(settings))
    run = work / "rows"
    _hpcrl("submit", str(work / "rows.yaml"), "--cluster", "local", "--run-dir", str(run), folder=work)
    last = json.loads((work / "bytes").read_text().splitlines()[-1])
    read, received, means = last["read"], last["received"], last["for_means"]
    detail = f"{received - means:,} bytes beside {read:,} of rows, and {means:,} for {last['means']} means"
    return [
        Figure("bytes that reach a script over those of the rows that it reads", received / read, "×", "≤ 1.01", detail)
    ]


def _hpcrl(*words: str, folder: Path | None = None, code: int = 0) -> None:
    given = environment() | ({} if folder is None else {"HPCRL_BENCH_FOLDER": str(folder)})
    done = subprocess.run(hpcrl(*words), cwd=ROOT, env=given, capture_output=True, text=True)
    if done.returncode != code:
        raise RuntimeError(f"hpcrl {words[0]} ended with {done.returncode}: {done.stderr[-2000:]}")

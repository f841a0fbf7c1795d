"""Runs that have to learn something: submitted to this machine as a user would, and what their metrics say.

What they came to is kept where `HPCRL_GATES` names a file, as `make gates` does.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml
from filelock import FileLock

from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.metrics import series
from hpcrl.inspect.reader import merged_metrics

ROOT = Path(__file__).parents[2]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What one seed came to: the measured value before, at the end, and the step from which it was good."""

    seed: int
    before: float
    after: float
    steps: int


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """A line of docs/algorithms.md: what had to be learnt, and whether it was."""

    gate: str
    algorithm: str
    task: str
    goal: str
    seeds: list[Found] = []


def submit(config: Path, run: Path, *settings: str) -> None:
    """Run a configuration to its end. Raises RuntimeError with what it said if it fails."""
    command = [
        sys.executable,
        "-m",
        "hpcrl.cli.main",
        "submit",
        str(config),
        "--cluster",
        "local",
        "--run-dir",
        str(run),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *settings], cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")


def write_config(path: Path, values: Mapping[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(dict(values), sort_keys=False))
    return path


def curve(run: Path, metric: str) -> dict[int, float]:
    """A metric by step; before the first one it is step 0's."""
    steps, values = series(merged_metrics(RunDirectory.open(run)), metric)
    return dict(zip(steps, values, strict=True))


def exported(run: Path, role: str) -> Path:
    """The model that a run has left."""
    return max((run / "export" / role).iterdir(), key=lambda folder: folder.stat().st_mtime)


def found(run: Path, metric: str, seed: int, least: float) -> Found:
    """What a run came to, and the step from which the metric did not fall below `least` again (else its last one)."""
    values = curve(run, metric)
    good = max(values)
    for step in sorted(values, reverse=True):
        if values[step] < least:
            break
        good = step
    return Found(seed=seed, before=values[min(values)], after=values[max(values)], steps=good)


def keep(gate: Gate, found: Found) -> None:
    """Into the file that `HPCRL_GATES` names, in place of what the seed came to before."""
    name = os.environ.get("HPCRL_GATES")
    if name is None:
        return
    path, lock = ROOT / name, ROOT / "runs" / "gates.lock"
    lock.parent.mkdir(exist_ok=True)
    with FileLock(lock):
        known = msgspec.json.decode(path.read_bytes(), type=list[Gate]) if path.exists() else []
        seeds = [other for one in known if one.gate == gate.gate for other in one.seeds if other.seed != found.seed]
        gate = msgspec.structs.replace(gate, seeds=sorted([*seeds, found], key=lambda one: one.seed))
        gates = sorted([*(one for one in known if one.gate != gate.gate), gate], key=lambda one: one.gate)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(gates), indent=1) + b"\n")

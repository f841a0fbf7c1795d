"""GRPO learns to write backwards, killed ten times at random moments: to the bit what it learns undisturbed.

Whole runs of `hpcrl submit` and `hpcrl resume`; workers, their agent and the master are hit by SIGKILL.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.chaos import outputs, process_of, remains, started_twice, wait_until, workers_of
from support.cluster import alive_of
from support.learning import ROOT, curve, submit, write_config
from support.reverse import grouped, settings, write

from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.reader import merged_metrics
from hpcrl.launch.local import LocalLauncher

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

KILLS, STEPS, SEED = 10, 40, 1
VICTIMS = ("worker", "worker", "worker", "agent-0", "master")
PAUSE_S = (0.0, 1.5)
STARTING = 0.25
"""The share of kills that come while the run may still be starting; before the others it has closed a step."""
LONGEST_S = 300.0


def configuration(folder: Path) -> Mapping[str, Any]:
    """Two workers, a reference, a checkpoint every ten steps."""
    values = grouped(settings(folder, SEED, "grpo", STEPS))
    values["grpo"]["kl"] = {"mode": "loss", "coef": 0.001}
    values["reference"] = {"path": values["actor"]["path"]}
    values["control"] |= {"checkpoint": {"steps": 10}}
    # An agent that dies before it has met its master is awaited for as long as a start may take.
    patience = {"lost_after_s": 10.0, "start_timeout_s": 25.0, "orphan_timeout_s": 5.0, "replace_timeout_s": 0.5}
    values["cluster"] |= {"workers_per_node": 2, "heartbeat_s": 0.2, **patience}
    return values


def hpcrl(*words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "hpcrl.cli.main", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"hpcrl {' '.join(words)}:\n{(done.stdout + done.stderr)[-3000:]}"


def is_alive(run: RunDirectory) -> bool:
    return LocalLauncher().is_alive(run, run.submissions()[-1])


def is_done(run: RunDirectory) -> bool:
    verdict = run.newest_verdict()
    return verdict is not None and verdict.state == "done" and not is_alive(run)


def newest_step(run: RunDirectory) -> int:
    return max((row["step"] for row in merged_metrics(run)), default=-1)


def hit(run: RunDirectory, dice: random.Random) -> str:
    """Kill one of the run's processes; who it was, or nothing where none was there."""
    who = dice.choice(VICTIMS)
    try:
        pid = dice.choice(workers_of(run)) if who == "worker" else process_of(run, who)
        os.kill(pid, signal.SIGKILL)
    except (IndexError, ProcessLookupError):
        return ""
    return f"{who} (process {pid})"


def killed(run: RunDirectory, dice: random.Random) -> list[str]:
    """Kill and resume until there were enough kills and the run is done; when each came, and to whom."""
    begun, kills = time.monotonic(), list[str]()
    while not is_done(run):
        if not is_alive(run):
            hpcrl("resume", str(run.root), "--detach")
        if len(kills) == KILLS:
            wait_until(lambda: not is_alive(run), LONGEST_S, "the end of the run")
            continue
        if dice.random() > STARTING:
            before = newest_step(run)
            wait_until(lambda before=before: newest_step(run) > before or not is_alive(run), LONGEST_S, "a step")
        time.sleep(dice.uniform(*PAUSE_S))
        step = newest_step(run)
        if who := hit(run, dice):
            kills.append(f"{time.monotonic() - begun:.2f} s, attempt {run.newest_attempt()}, step {step}: {who}")
    return kills


def test_a_run_that_is_killed_ten_times_learns_the_same_to_the_bit(tmp_path: Path) -> None:
    write(tmp_path, SEED)
    config = write_config(tmp_path / "grpo.yaml", configuration(tmp_path))
    submit(config, tmp_path / "plain")
    hpcrl("submit", str(config), "--cluster", "local", "--run-dir", str(tmp_path / "killed"), "--detach")
    plain, run = (RunDirectory.open(tmp_path / name) for name in ("plain", "killed"))
    seed = int(os.environ.get("HPCRL_KILL_SEED", SEED))
    kills = killed(run, random.Random(seed))
    rewards = curve(plain.root, "rew_inf/reward")
    told = "\n".join([f"HPCRL_KILL_SEED={seed}", *kills])
    assert len(kills) == KILLS, told
    assert rewards[STEPS] > rewards[1] + 0.05, "a run that learns nothing would show little"
    found, expected = remains(run), remains(plain)
    assert found.parameters == expected.parameters and found.state == expected.state, f"{told}\n{outputs(run)}"
    assert found.metrics == expected.metrics, told
    assert (found.ids, found.trained) == (expected.ids, expected.trained), told
    assert started_twice(run) == [], told
    assert alive_of(run.root) == [], told

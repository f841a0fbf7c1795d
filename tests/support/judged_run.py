"""PPO of a tiny model from the command line. Its reward is several files of the user's, and waits when told to.

While there is a file `hold`, no process scores more responses than the number in it.
"""

import json
import subprocess
import sys
from pathlib import Path

from support.chaos import rows_of, wait_until
from support.hosts import write_task

from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode

STEPS = 6
BATCH = 4
SCORE = """
import itertools
import pathlib
import time

import parts.length

CALLS = itertools.count()
HOLD = pathlib.Path("hold")
LET_THROUGH = int(HOLD.read_text()) if HOLD.exists() else 0
WEIGHT = float((pathlib.Path(__file__).parent / "weights" / "one.txt").read_text())

def score(prompt, response, row):
    from late import bonus
    call = next(CALLS)
    while call >= LET_THROUGH and HOLD.exists():
        time.sleep(0.05)
    return WEIGHT * response.count("1") - parts.length.cost(response) + bonus(response, row)
"""
FILES = {
    "score.py": SCORE,
    "parts/__init__.py": "",
    "parts/length.py": "from . import factor\ndef cost(response):\n    return factor.FACTOR * len(response)\n",
    "parts/factor.py": "FACTOR = 0.1\n",
    "late.py": "def bonus(response, row):\n    return 0.5 * (response == row['answer'])\n",
    "weights/one.txt": "1.0",
}
SPOILT = {
    "parts/factor.py": "FACTOR = 70.0\n",
    "late.py": "def bonus(response, row):\n    return 1000.0\n",
    "weights/one.txt": "-5.0",
}


def hpcrl(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hpcrl.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=folder)


def written(folder: Path) -> Path:
    """ppo.yaml, and all that it names."""
    write_task(folder)
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    model = {"path": "model", "optimizer": {"lr": 0.001}}
    values = {
        "algorithm": "ppo",
        "control": {"steps": STEPS, "checkpoint": {"steps": 4}},
        "data": {"train": "rows.jsonl", "batch_size": BATCH},
        "actor": model,
        "critic": model,
        "reference": {"path": "model"},
        "reward": {"function": "score.py:score"},
        "code": {"files": ["weights/*.txt"]},
        "generation": {"max_new_tokens": 6, "slots": 4},
        "cluster": {
            "type": "local",
            "workers_per_node": 1,
            "device": "cpu",
            "heartbeat_s": 0.2,
            "lost_after_s": 10,
            "orphan_timeout_s": 10,
            "replace_timeout_s": 0.5,
        },
    }
    (folder / "ppo.yaml").write_text(json.dumps(values))
    return folder


def submitted(folder: Path, *words: str) -> RunDirectory:
    """A detached run after two steps, whose reward waits."""
    (folder / "hold").write_text(str(2 * BATCH))
    done = hpcrl(folder, "submit", "ppo.yaml", "--run-dir", "run", "--detach", *words)
    assert done.returncode == ExitCode.DONE, done.stderr
    run = RunDirectory.open(folder / "run")
    wait_until(lambda: closed_steps(run) >= 2, 120, "the second step")
    return run


def closed_steps(run: RunDirectory) -> int:
    return sum(row["event"] == "closed" for number in run.numbers() for row in rows_of(run.events(number)))

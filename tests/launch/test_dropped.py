"""What a reward could not score is recorded: too much of it ends the run, and nobody is asked for it again."""

import json
from pathlib import Path

import pytest
from support.judged_run import hpcrl, written

from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode

JUDGE = """
import pathlib
ASKED = pathlib.Path("asked")

def score(response, row, tokens):
    with ASKED.open("a") as file:
        file.write(row["id"] + "\\n")
    if row["id"] in ("0", "1", "2") and tokens:
        raise ValueError("it cannot judge " + row["id"])
    return float(len(response))
"""


@pytest.mark.slow
def test_a_run_that_drops_too_much_ends_and_goes_on_without_asking_again_once_it_may(tmp_path: Path) -> None:
    values = json.loads((written(tmp_path) / "ppo.yaml").read_text())
    (tmp_path / "judge.py").write_text(JUDGE)
    values["reward"] = {"function": "judge.py:score", "on_error": "drop", "trial_rows": 0}
    values["control"] = {"steps": 1}
    (tmp_path / "ppo.yaml").write_text(json.dumps(values | {"code": {}}))

    ended = hpcrl(tmp_path, "submit", "ppo.yaml", "--run-dir", "run")
    assert ended.returncode == ExitCode.DATA, ended.stdout + ended.stderr
    assert "rew_inf of step 1 has dropped" in ended.stderr and "raise reward.max_dropped" in ended.stderr
    run = RunDirectory.open(tmp_path / "run")
    logs = "".join(path.read_text() for path in run.root.glob("attempts/*/logs/*.err"))
    assert "ValueError: it cannot judge" in logs and 'judge.py", line' in logs and "response: " in logs
    asked = (tmp_path / "asked").read_text()

    resumed = hpcrl(tmp_path, "resume", "run", "--reward.max_dropped", "1")
    assert resumed.returncode == ExitCode.DONE, resumed.stdout + resumed.stderr
    assert (tmp_path / "asked").read_text() == asked
    rows = [json.loads(line) for path in run.root.glob("attempts/*/metrics.jsonl") for line in path.open()]
    assert 0 < rows[-1]["rew_inf/dropped"] < 1 and rows[-1]["rew_inf/reward"] >= 0

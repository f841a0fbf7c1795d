"""examples/chat as a user starts it: supervised fine-tuning, a reward model from pairs, PPO against it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.reader import merged_metrics

ROOT = Path(__file__).parents[2]
STAGES = ("sft", "reward-model", "ppo")
SHORT = ["--control.steps=2", "--control.evaluate.steps=2", "--cluster.workers_per_node=1", "--data.batch_size=16"]


def staged(work: Path, settings: list[str], timeout_s: float) -> dict[str, RunDirectory]:
    """The runs of the example, in a folder."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [ROOT / "examples/chat/chat.sh", work, *settings]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    return {stage: RunDirectory.open(work / stage) for stage in STAGES}


@pytest.mark.slow
def test_every_stage_begins_from_what_the_one_before_has_exported(tmp_path: Path) -> None:
    runs = staged(tmp_path / "my chats", [*SHORT, "--data.evaluate_rows=8"], timeout_s=250)
    sft, judge = runs["sft"].export("actor", 2), runs["reward-model"].export("reward_model", 2)
    paths = {stage: run.configuration() for stage, run in runs.items()}
    assert paths["reward-model"]["reward_model"]["path"] == str(sft)
    assert paths["ppo"]["actor"]["path"] == str(sft)
    assert paths["ppo"]["critic"]["path"] == paths["ppo"]["reward_model"]["path"] == str(judge)
    rows = merged_metrics(runs["ppo"])
    assert all(row["rew_inf/judge"] == row["rew_inf/reward"] != 0 for row in rows[1:])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_is_learnt_what_is_preferred(tmp_path: Path) -> None:
    runs = staged(tmp_path / "chats", [], timeout_s=880)
    first, *_, last = (merged_metrics(runs[stage]) for stage in STAGES)
    assert first[-1]["eval_rew/accuracy"] >= 0.95
    assert merged_metrics(runs["reward-model"])[-1]["eval_pairs/accuracy"] >= 0.97
    assert last[-1]["eval_rew/judge"] >= last[0]["eval_rew/judge"] + 2

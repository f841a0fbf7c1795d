"""The main job as `make demo` runs it, until it has learnt: from random parameters through SFT and PPO to a model that
adds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.metrics import series
from hpcrl.inspect.reader import merged_metrics

ROOT = Path(__file__).parents[2]
ACCURACY = "eval_rew/accuracy"
BEGINS, ADDS = 0.6, 0.75


@pytest.mark.timeout(900)
@pytest.mark.parametrize("learnt", [BEGINS, pytest.param(ADDS, marks=pytest.mark.slow)])
def test_the_demo_learns_to_add_and_shows_it(tmp_path: Path, learnt: float) -> None:
    work = tmp_path / "demo"
    environment = os.environ | {"SEED": "1", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [ROOT / "examples/addition/demo.sh", work, "--control.stop_when", f"{ACCURACY} >= {learnt}"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=880)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    steps, accuracies = series(merged_metrics(RunDirectory.open(work / "ppo")), ACCURACY)
    assert steps[0] == 0
    assert steps[-1] <= 300
    assert accuracies[0] <= 0.5
    assert accuracies[-1] >= learnt
    assert (work / "ppo" / "curves.png").stat().st_size > 10_000
    assert "ppo · done" in ended.stdout
    assert "restarts" in ended.stdout
    assert "\x1b[2K" not in ended.stdout
    assert right_answers_of_transformers(work) == pytest.approx(accuracies[-1], abs=0.01)


def right_answers_of_transformers(work: Path) -> float:
    """The share of held-out sums that the exported actor answers right, loaded and decoded by transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = sorted((work / "ppo" / "export" / "actor").iterdir())[-1]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    rows = [json.loads(line) for line in (work / "test.jsonl").read_text().splitlines()]
    prompts = torch.tensor([tokenizer(row["prompt"]).input_ids for row in rows])
    with torch.inference_mode():
        tokens = model.generate(prompts, max_new_tokens=6, do_sample=False)[:, prompts.shape[1] :]
    texts = [tokenizer.decode(answer, skip_special_tokens=True) for answer in tokens]
    return sum(text == row["answer"] for text, row in zip(texts, rows, strict=True)) / len(rows)

"""A run whose model was replaced, or diverged, gets further by doing what its message says."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from support.hosts import LETTERS, write_model, write_task
from support.judged_run import hpcrl

from hpcrl.errors import ExitCode


def expect(done: subprocess.CompletedProcess[str], code: ExitCode, said: str = "") -> None:
    output = done.stdout + done.stderr
    assert done.returncode == code, output
    assert said in " ".join(output.split()), output


@pytest.mark.slow
def test_a_replaced_model_is_put_back_and_a_diverged_one_left_for_an_earlier(tmp_path: Path) -> None:
    write_task(tmp_path)
    shutil.copytree(tmp_path / "model", tmp_path / "tokenizer")
    values = {
        "algorithm": "sft",
        "control": {"steps": 2, "checkpoint": {"steps": 1}, "keep_checkpoints": 9, "evaluate": {"steps": 1}},
        "data": {"train": "rows.jsonl", "evaluate": "held_out.jsonl", "tokenizer": "tokenizer", "batch_size": 4},
        "actor": {"path": "model", "optimizer": {"lr": 0.001}},
        "generation": {"max_new_tokens": 6},
        "cluster": {"type": "local", "workers_per_node": 1, "device": "cpu", "orphan_timeout_s": 10},
    }
    (tmp_path / "sft.yaml").write_text(json.dumps(values))
    expect(hpcrl(tmp_path, "submit", "sft.yaml", "--run-dir", "run"), ExitCode.DONE)

    (tmp_path / "model").rename(tmp_path / "aside")
    write_model(tmp_path / "model", LETTERS, max_positions=64, blocks=1)
    accept = ("--accept-changed", "actor.path")
    longer = ("resume", "run", "--control.steps", "3", "--actor.optimizer.lr", "1e30")
    said = (
        "Put the model back that actor.path had when the run began, and accept it: `hpcrl resume RUN --accept-changed"
    )
    expect(hpcrl(tmp_path, *longer, *accept), ExitCode.INTERNAL, said)

    shutil.rmtree(tmp_path / "model")
    (tmp_path / "aside").rename(tmp_path / "model")
    said = "begin from a checkpoint before that with a lower actor.optimizer.lr: `hpcrl fork RUN --step N"
    expect(hpcrl(tmp_path, "resume", "run", *accept), ExitCode.INTERNAL, said)

    words = ("fork", "run", "--step", "2", "--control.steps", "3", "--actor.optimizer.lr", "1e-4", "--run-dir", "new")
    expect(hpcrl(tmp_path, *words), ExitCode.DONE)

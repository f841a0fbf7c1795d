"""The example of a PPO of adapters, as a user starts it: what it exports PEFT loads, and a run may begin from."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.hosts import write_task

from hpcrl.durable.rundir import RunDirectory

ROOT = Path(__file__).parents[2]
SMALL = [
    "--data.batch_size=8",
    "--data.prompt_template={prompt}",
    "--generation.slots=8",
    "--actor.optimizer.lr=0.02",
    "--control.steps=2",
    "--control.evaluate.steps=null",
    "--control.export.steps=2",
    "--ppo.minibatches=2",
]


def submit(task: Path, run_dir: Path, *settings: str) -> Path:
    """Run the example to its end; the actor's export."""
    files = [f"--data.train={task / 'rows.jsonl'}", f"--data.evaluate={task / 'held_out.jsonl'}"]
    files += [f"--reward.function={task / 'reward.py'}:ones"]
    files += [f"--{role}.path={task / 'model'}" for role in ("actor", "critic")]
    words = ["submit", "examples/addition/ppo-lora.yaml", "--cluster", "local", "--run-dir", str(run_dir)]
    command = [sys.executable, "-m", "hpcrl.cli.main", *words, *files, *SMALL, *settings]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    (folder,) = (RunDirectory.open(run_dir).exports / "actor").iterdir()
    return folder


@pytest.mark.slow
def test_adapters_are_learnt_exported_and_begun_from(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    write_task(tmp_path / "task")
    first = submit(tmp_path / "task", tmp_path / "first")
    fields = json.loads((first / "adapter" / "adapter_config.json").read_text())
    assert (fields["r"], fields["lora_alpha"]) == (16, 32)
    learnt = load_file(first / "adapter" / "adapter_model.safetensors")
    assert all(tensor.any() for tensor in learnt.values())
    kept = ["--actor.optimizer.lr=1e-12", f"--actor.lora.path={first / 'adapter'}"]
    second = submit(tmp_path / "task", tmp_path / "second", *kept)
    again = load_file(second / "adapter" / "adapter_model.safetensors")
    for name, tensor in learnt.items():
        np.testing.assert_allclose(again[name], tensor, rtol=0, atol=1e-9)

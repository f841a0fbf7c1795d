"""The recipes of GSM8K on real rows, with a random model of a tiny size: SFT, then PPO from its export."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.tiny_tokenizer import train_tokenizer

from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.reader import merged_metrics

ROOT = Path(__file__).parents[2]
ROWS = ROOT.parent / "shared" / "data" / "gsm8k"
SMALL = [
    "--cluster.workers_per_node=2",
    "--cluster.device=cpu",
    "--data.evaluate_rows=8",
    "--data.max_prompt_tokens=120",
    "--control.epochs=null",
    "--control.steps=3",
    "--actor.dtype=fp32",
    "--generation.max_new_tokens=24",
]
pytestmark = pytest.mark.skipif(not ROWS.is_dir(), reason=f"the rows of GSM8K are not in {ROWS}")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer trained on the questions, and random parameters for it."""
    from hpcrl.families.config import DecoderConfig
    from hpcrl.models.pretrained import write_random_pretrained

    folder = train_tokenizer(tmp_path_factory.mktemp("model"), texts_of(ROWS / "test.jsonl"), size=600)
    config = DecoderConfig(
        family="qwen2",
        vocabulary_size=600,
        hidden_size=32,
        intermediate_size=64,
        blocks=2,
        heads=4,
        kv_heads=2,
        head_dim=8,
        max_positions=1024,
        qkv_bias=True,
        tied=True,
    )
    write_random_pretrained(folder, config, seed=1)
    return folder


def texts_of(path: Path) -> list[str]:
    rows = map(json.loads, path.read_text().splitlines())
    return [row[key] for row in rows for key in ("prompt", "answer")]


def submit(recipe: str, run_dir: Path, *settings: str) -> RunDirectory:
    data = [f"--data.train={ROWS / 'train.jsonl'}", f"--data.evaluate={ROWS / 'test.jsonl'}"]
    command = [sys.executable, "-m", "hpcrl.cli.main", "submit", f"examples/gsm8k/{recipe}", "--run-dir", run_dir]
    ended = subprocess.run([*command, *data, *SMALL, *settings], cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    return RunDirectory.open(run_dir)


@pytest.mark.slow
def test_sft_and_then_ppo_train_on_real_rows(tmp_path: Path, model: Path) -> None:
    sft = submit("sft.yaml", tmp_path / "sft", f"--actor.path={model}", "--data.batch_size=16")
    losses = [row["actor_train/loss"] for row in merged_metrics(sft) if row["step"]]
    assert len(losses) == 3
    assert losses[0] == pytest.approx(6.4, abs=0.3)
    assert losses[-1] < losses[0]
    learnt = sft.export("actor", 3)
    paths = [f"--{role}.path={learnt}" for role in ("actor", "critic", "reference")]
    dtypes = ["--critic.dtype=fp32", "--reference.dtype=fp32"]
    ppo = submit("ppo.yaml", tmp_path / "ppo", *paths, *dtypes, "--data.batch_size=16", "--control.evaluate.steps=3")
    rows = merged_metrics(ppo)
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert rows[1]["rew_inf/reward"] == 0.0
    assert rows[1]["actor_train/kl"] == pytest.approx(0.0, abs=1e-6)
    assert rows[3]["eval_rew/accuracy"] == 0.0

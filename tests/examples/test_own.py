"""examples/own and docs/customise.md: an algorithm and a reward of one's own, as a user starts them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.tiny_tokenizer import train_tokenizer

from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.reader import merged_metrics

ROOT = Path(__file__).parents[2]
OWN = ROOT / "examples" / "own"


def hpcrl(*words: object) -> str:
    command = [sys.executable, "-m", "hpcrl.cli.main", *map(str, words)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    return ended.stdout


def settings(folder: Path) -> list[str]:
    """Sums, and a random model that knows their letters."""
    from hpcrl.families.config import DecoderConfig
    from hpcrl.models.pretrained import write_random_pretrained

    rows = [{"prompt": f"{a}+{b}=", "answer": f"#### {a + b}"} for a in range(8) for b in range(8)]
    for name in ("train", "test"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train_tokenizer(folder / "model", [row[key] for row in rows for key in ("prompt", "answer")], size=300)
    config = DecoderConfig("qwen2", 300, 32, 64, 2, 4, 2, 8, 64, qkv_bias=True, tied=True)
    write_random_pretrained(folder / "model", config, seed=1)
    data = [f"--data.train={folder / 'train.jsonl'}", f"--data.evaluate={folder / 'test.jsonl'}"]
    return [*data, f"--actor.path={folder / 'model'}", "--data.batch_size=8", "--data.samples_per_prompt=4"]


@pytest.mark.slow
def test_an_algorithm_and_a_reward_of_ones_own_train_from_their_files(tmp_path: Path) -> None:
    own = settings(tmp_path)
    shown = hpcrl("plan", OWN / "run.yaml", *own)
    assert "actor_train" in shown
    assert "ref_inf" not in shown
    assert "--filter.margin" in hpcrl("plan", OWN / "run.yaml", *own, "--help")
    hpcrl("submit", OWN / "run.yaml", "--run-dir", tmp_path / "run", *own, "--control.steps=2")
    rows = merged_metrics(RunDirectory.open(tmp_path / "run"))
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(row["rew_inf/reward_number"] >= row["rew_inf/reward"] for row in rows[1:])
    assert all(row["actor_train/loss"] <= 0 for row in rows[1:]), "nothing is unlearnt"


def test_the_page_shows_what_is_in_the_files_and_the_algorithm_is_short() -> None:
    page = (ROOT / "docs" / "customise.md").read_text(encoding="utf-8")
    snippets = [text.split("```", 1)[0] for text in page.split("```python\n")[1:]]
    files = [(OWN / name).read_text(encoding="utf-8") for name in ("algorithm.py", "reward.py")]
    assert len(snippets) == 2
    assert all(any(snippet in file for file in files) for snippet in snippets)
    assert len(files[0].splitlines()) < 60

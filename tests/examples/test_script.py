"""examples/script: algorithms as loops, as a user starts them."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.hosts import write_task

from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.reader import merged_metrics

OTHERS = {**dict.fromkeys(("ppo", "ahead", "surprise"), ("critic", "reference")), "judge": ("judge",)}
ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "script"


def hpcrl(*words: object) -> str:
    command = [sys.executable, "-m", "hpcrl.cli.main", *map(str, words)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    return ended.stdout


def settings(task: Path, name: str) -> list[str]:
    """Few rows, and a random model that knows their letters."""
    roles = ("actor", *OTHERS.get(name, ()))
    data = [f"--data.train={task / 'rows.jsonl'}", f"--data.evaluate={task / 'held_out.jsonl'}", "--data.batch_size=6"]
    return [*data, *(f"--{role}.path={task / 'model'}" for role in roles), "--control.steps=2"]


LOGGED = {
    "ppo": {"price", "value_loss"},
    "grpo": {"kept", "trained"},
    "judge": {"loss"},
    "tool": {"loss"},
    "ahead": {"beta"},
    "surprise": {"dull", "surprise"},
}


# An environment, a judge and methods of ones own have tests in tests/algos.
FAST = ("ppo", "grpo", "ahead")


@pytest.mark.parametrize(
    ("name", "logged"), [pytest.param(*it, marks=() if it[0] in FAST else pytest.mark.slow) for it in LOGGED.items()]
)
def test_an_algorithm_as_a_script_runs_two_steps(tmp_path: Path, name: str, logged: set[str]) -> None:
    write_task(tmp_path)
    hpcrl(
        "submit",
        SCRIPTS / f"{name}.yaml",
        "--run-dir",
        tmp_path / "run",
        *settings(tmp_path, name),
        "--control.evaluate.steps=2",
    )
    rows = merged_metrics(RunDirectory.open(tmp_path / "run"))
    assert [row["step"] for row in rows][-2:] == [1, 2]
    assert all(any(key.endswith(name) for key in rows[-1]) for name in (*logged, "held_out"))


@pytest.mark.parametrize("name", ["ppo", pytest.param("ahead", marks=pytest.mark.slow)])
def test_a_script_that_prepares_steps_may_have_a_lag(tmp_path: Path, name: str) -> None:
    """Its rehearsal asks for all that a step with a lag reads."""
    write_task(tmp_path)
    hpcrl("plan", SCRIPTS / f"{name}.yaml", *settings(tmp_path, name), "--lag=1", f"--run_root={tmp_path}")


@pytest.mark.parametrize("name", LOGGED)
def test_an_algorithm_as_a_script_is_short(name: str) -> None:
    assert len((SCRIPTS / f"{name}_loop.py").read_text(encoding="utf-8").splitlines()) < 60


def test_the_page_shows_what_is_in_the_files() -> None:
    page = (ROOT / "docs" / "controller.md").read_text(encoding="utf-8")
    snippets = [text.split("```", 1)[0] for text in page.split("```python\n")[1:]]
    files = [path.read_text(encoding="utf-8") for path in SCRIPTS.glob("*.py")]
    assert len(snippets) == 10
    assert all(any(snippet in file for file in files) for snippet in snippets)

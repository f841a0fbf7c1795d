"""examples/script: algorithms as loops, as a user starts them."""

import math
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.experiments import load_config
from support.hosts import write_task

from hpcrl.controller.computations import Computations
from hpcrl.controller.run import World, follow
from hpcrl.controller.stand_in import StandIn
from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.reader import merged_metrics
from hpcrl.placement.plan import plan_for
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.wire.script_messages import CallExecuted, TurnEnded

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


class Counting(StandIn):
    """Of each update this share of the samples counts; of 0 there is no other statistic, nor any of another call."""

    share = 0.0

    def hear(self) -> Any:
        message = super().hear()
        if not isinstance(message, CallExecuted):
            return message
        counted = {name: self.share for name in message.stats if name == "counted"}
        return msgspec.structs.replace(message, stats=message.stats | counted if self.share else counted)


def followed(task: Path, name: str, share: float, *more: str) -> tuple[Any, StandIn]:
    """The loop beside a master whose rows and numbers are made up, and its experiment."""
    write_task(task)
    of = load_config(SCRIPTS / f"{name}.yaml", [*(it[2:] for it in settings(task, name)), *more])
    algorithm = algorithm_of(of)
    assert algorithm.script is not None
    computations = Computations(algorithm.forms(of))
    line = Counting(algorithm, of, computations, 1, 2, ())
    line.share = share
    follow(algorithm.script, line, World(algorithm, plan_for(of), {0: of}, computations, rehearses=True))
    return of, line


@pytest.mark.parametrize("name", LOGGED)
def test_an_algorithm_as_a_script_survives_updates_to_which_nothing_counts(tmp_path: Path, name: str) -> None:
    """They have no loss and no KL."""
    of, line = followed(tmp_path, name, 0.0)
    rows = [it.logged for it in line.asked if isinstance(it, TurnEnded)]
    assert len(rows) == 2
    for row in rows:
        assert all(math.isnan(row[key]) for key in row if key.endswith("loss"))
        assert name != "ahead" or row["beta"] == of.ppo.kl.coef


def test_the_weight_of_the_kl_follows_the_samples_that_count(tmp_path: Path) -> None:
    of, line = followed(tmp_path, "ahead", 0.5, "ppo.kl.target=1e-9")
    (first, _) = [it.logged["beta"] for it in line.asked if isinstance(it, TurnEnded)]
    counted = of.data.batch_size // 2
    assert first == of.ppo.kl.coef * (1 + 0.2 * counted / of.ppo.kl.horizon)


def test_a_missing_score_differs_from_none() -> None:
    differing = runpy.run_path(str(SCRIPTS / "grpo_loop.py"))["differing"]
    ids = [f"{row}@0#{copy}" for row in "abc" for copy in range(2)]
    scores = [math.nan, math.nan, 1.0, math.nan, 0.0, 1.0]
    assert differing(ids, [np.array([score], np.float32) for score in scores]) == ids[4:]


@pytest.mark.parametrize("name", LOGGED)
def test_an_algorithm_as_a_script_is_short(name: str) -> None:
    assert len((SCRIPTS / f"{name}_loop.py").read_text(encoding="utf-8").splitlines()) < 60


def test_the_page_shows_what_is_in_the_files() -> None:
    page = (ROOT / "docs" / "controller.md").read_text(encoding="utf-8")
    snippets = [text.split("```", 1)[0] for text in page.split("```python\n")[1:]]
    files = [path.read_text(encoding="utf-8") for path in SCRIPTS.glob("*.py")]
    assert len(snippets) == 10
    assert all(any(snippet in file for file in files) for snippet in snippets)

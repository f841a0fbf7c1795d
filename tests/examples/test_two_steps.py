"""Every configuration that is shipped runs two steps, of small rows on a tiny model in the place of its own."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.experiments import load_config
from support.hosts import run_of, write_task
from support.judges import write_judge, write_pairs

from hpcrl.config.control import Frequency
from hpcrl.config.fields import settings

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "script"
"""Whose calls no graph orders: test_script.py runs them."""
CONFIGURATIONS = sorted(path for path in (ROOT / "examples").rglob("*.yaml") if path.parent != SCRIPTS)
STEPS = 2


def small(task: Path, algorithm: str) -> dict[str, Any]:
    """Setting → its stand-in."""
    kind = "pairs-" * (algorithm in ("dpo", "reward_model", "evaluate_pairs"))
    return {
        "data.train": task / f"{kind}rows.jsonl",
        "data.evaluate": task / f"{kind}held_out.jsonl",
        "reward_model.path": task / ("model" if algorithm == "reward_model" else "judge"),
        "data.evaluate_rows": 2,
        "data.batch_size": 6,
        "data.max_prompt_tokens": 40,
        "generation.max_new_tokens": 8,
        "cluster.device": "cpu",
    } | {f"{role}.path": task / "model" for role in ("actor", "critic", "reference")}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    write_judge(folder, labels=1)
    for name in ("rows.jsonl", "held_out.jsonl"):
        write_pairs(folder / name, folder / f"pairs-{name}")
    yield folder


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_shipped_configuration_runs_two_steps(path: Path, task: Path) -> None:
    own = load_config(path, checks=())
    known = {setting.key: setting.of(own) for setting in settings(type(own))}
    buffers = {key: 4 for key, value in known.items() if key.endswith(".overlong_buffer") and value}
    on_one_worker = {key: "null" for key, value in known.items() if key.endswith((".layout", ".mesh")) and value}
    chosen = small(task, own.algorithm) | buffers | on_one_worker | {"calls": "{}"}
    changes = [f"{key}={value}" for key, value in chosen.items() if key in known]
    experiment = load_config(path, changes)
    control = replace(experiment.control, steps=STEPS, epochs=None, evaluate=Frequency(steps=1))
    with run_of(replace(experiment, control=control)) as conductor:
        for step in range(1, STEPS + 1):
            done = conductor.step(step)
            trained = [outcome for outcome in done.outcomes.values() if outcome.record is not None]
            assert bool(trained) == any(call.changes for call in conductor.plan.calls)
            assert all(outcome.record.get("outcomes", True) for outcome in trained)
        if any(call.dataset == "eval" for call in conductor.plan.calls):
            assert conductor.evaluate(STEPS).outcomes

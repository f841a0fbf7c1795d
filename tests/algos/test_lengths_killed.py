"""Runs of SFT whose steps lengths cut, on real processes: killed, they end with the same rows and bits."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.chaos import Remains, create_run, ends_alike, finish, outputs, remains
from support.faults import Strike
from support.hosts import write_task
from support.rows import open_datasets
from support.tiny_runs import tiny_cluster, tiny_control, tiny_data

from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import OptimizerConfig
from hpcrl.recipes.sft import SFTExperiment, SFTModelConfig

CUTS: dict[str, dict[str, Any]] = {
    "tokens": {"batch_tokens": 60, "batch_size": None},
    "even": {"balance": True, "batch_size": 4},
}
CASES = [
    ("tokens", ("master", "journal.after", 4, "KILL", "all")),
    pytest.param("even", ("worker-1", "worker.executed", 4, "KILL", "self"), marks=pytest.mark.slow),
    pytest.param("even", ("master", "manifest.synced", 1, "KILL", "all"), marks=pytest.mark.slow),
    pytest.param("tokens", ("worker-0", "worker.call", 5, "KILL", "agent-0"), marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and rows whose answers are of lengths from a few tokens to many."""
    folder = tmp_path_factory.mktemp("task")
    write_task(folder, rows=14)
    rows = [{"id": str(i), "prompt": f"{i % 10}+1=", "answer": "# 1" + " 2" * (i * i % 13)} for i in range(14)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def experiment(task: Path, cut: str) -> SFTExperiment:
    """Two epochs, whose length the learning rate follows."""
    optimizer = OptimizerConfig(lr=0.01, schedule="linear")
    return SFTExperiment(
        control=replace(tiny_control(1), steps=None, epochs=2),
        cluster=tiny_cluster(),
        data=tiny_data(task, **CUTS[cut]),
        actor=SFTModelConfig(path=str(task / "model"), optimizer=optimizer),
        generation=GenerationConfig(max_new_tokens=4),
    )


@pytest.fixture(scope="module")
def undisturbed(task: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Remains]:
    found = {}
    for cut in CUTS:
        run = create_run(tmp_path_factory.mktemp(cut) / "run", experiment(task, cut))
        assert finish(run) == [0], outputs(run)
        found[cut] = remains(run)
    return found


@pytest.mark.parametrize("cut", CUTS)
def test_steps_are_cut_by_the_tokens_of_their_rows(task: Path, undisturbed: dict[str, Remains], cut: str) -> None:
    of = experiment(task, cut)
    training, steps = open_datasets(of)["train"], [ids for ids in undisturbed[cut].ids.values() if ids]
    tokens = [sum(training.lengths(ids)) for ids in steps]
    assert sum(map(len, steps)) == 2 * 14 and len(set(map(len, steps))) > 1
    if cut == "tokens":
        assert max(tokens) <= 60
    else:
        longest = [max(training.lengths(ids)) for ids in steps]
        for epoch in (slice(0, 4), slice(4, 8)):
            assert longest[epoch][0] == max(longest)
            assert tokens[epoch][1:] == sorted(tokens[epoch][1:], reverse=True)
        assert [set(ids) for ids in steps[:4]] != [set(ids) for ids in steps[4:]]


@pytest.mark.parametrize(("cut", "point"), CASES)
def test_killed_at_a_point_it_ends_with_the_same_bits(
    tmp_path: Path, task: Path, undisturbed: dict[str, Remains], cut: str, point: tuple[str, str, int, str, str]
) -> None:
    role, at, nth, what, target = point
    run = create_run(tmp_path / "run", experiment(task, cut))
    strike = Strike(tmp_path, "strike", role, at, what, target, nth)
    ends_alike(run, undisturbed[cut], strike)

"""Generation as a run: every sample is kept, whatever is killed."""

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from support.archives import archives, kept_rows
from support.chaos import create_run, finish, outputs, started_twice
from support.cluster import alive_of
from support.faults import Strike
from support.hosts import write_task
from support.tiny_runs import tiny_cluster, tiny_data

from hpcrl.config.control import ControlConfig
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import ModelConfig
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Archived, Closed
from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.terminal import render
from hpcrl.inspect.views.summary import summary
from hpcrl.recipes.generate import ALGORITHM, GenerateExperiment

ROWS = 10
RESPONSES = 2
LONGEST = 5
POINTS = [
    ("worker-1", "worker.executed", 2, "KILL", "self"),
    ("master", "journal.before", 5, "KILL", "self"),
    ("housekeeper-0", "archive.write", 2, "KILL", "all"),
    ("housekeeper-0", "archive.published", 1, "KILL", "all"),
    ("master", "journal.after", 9, "KILL", "self"),
]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder, rows=ROWS)
    return folder


def experiment(task: Path, temperature: float = 1.0) -> GenerateExperiment:
    return GenerateExperiment(
        control=ControlConfig(epochs=1),
        cluster=tiny_cluster(),
        data=tiny_data(task, samples_per_prompt=RESPONSES, evaluate=None),
        actor=ModelConfig(path=str(task / "model")),
        generation=GenerationConfig(max_new_tokens=LONGEST, temperature=temperature, slots=4),
    )


@pytest.fixture(scope="module")
def undisturbed(task: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    run = create_run(tmp_path_factory.mktemp("undisturbed") / "run", experiment(task))
    assert finish(run) == [0], outputs(run)
    return run


def test_every_sample_is_kept_with_its_record_and_what_was_generated(task: Path, undisturbed: RunDirectory) -> None:
    records = [json.loads(line) for line in (task / "rows.jsonl").read_text().splitlines()]
    found = kept_rows(undisturbed)
    assert [sample for _, sample, _ in found] == [f"{row}@0#{i}" for row in range(ROWS) for i in range(RESPONSES)]
    for _, _, columns in found:
        record = json.loads(columns["record"][0])
        own = records[int(record["id"])]
        assert {key: record[key] for key in own} == own
        assert columns["prompts.text"] == [own["prompt"]]
        (text,), (tokens,), (ends,) = (columns[f"responses{kind}"] for kind in (".text", "", ".ends"))
        cut = len(tokens) == LONGEST and columns["finished"] == [[False]]
        assert columns["ended"] == ["length" if cut else "eos"]
        assert len(ends) == len(tokens) == len(columns["logprobs"][0]) and ends[-1] == len(text)
        assert not cut or ends == list(range(1, LONGEST + 1)), "each token is a letter"


def test_the_summary_says_how_to_see_them(undisturbed: RunDirectory) -> None:
    from rich.console import Console

    with (console := Console(width=300)).capture() as shown:
        console.print(render(summary(RunReader(undisturbed))))
    assert f"of 3 steps: hpcrl samples {undisturbed.root}" in shown.get()


def test_a_step_is_archived_after_its_line(undisturbed: RunDirectory) -> None:
    events = [line.event for line in read_history(undisturbed).lines]
    order = [(type(event), event.step) for event in events if isinstance(event, Archived | Closed)]
    assert all(order.index((Closed, step)) < order.index((Archived, step)) for step in (1, 2, 3)) and len(order) == 6
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in undisturbed.samples.rglob("*.h5"))


@pytest.mark.parametrize(("role", "point", "nth", "what", "target"), POINTS)
def test_killed_at_a_point_it_ends_with_the_same_archives_and_repeats_no_work(
    tmp_path: Path, task: Path, undisturbed: RunDirectory, role: str, point: str, nth: int, what: str, target: str
) -> None:
    run = create_run(tmp_path / "run", experiment(task))
    strike = Strike(tmp_path, "strike", role, point, what, target, nth)
    finish(run, strike)
    assert strike.marker.exists(), "the strike never came: the test tests nothing"
    assert archives(run) == archives(undisturbed), outputs(run)
    assert started_twice(run) == []
    assert alive_of(run.root) == []


def test_equal_responses_to_a_prompt_are_refused(task: Path) -> None:
    greedy = replace(experiment(task), generation=GenerationConfig(greedy=True))
    assert any("equal responses" in problem for problem in map(str, ALGORITHM.check(greedy)))
    assert list(ALGORITHM.check(experiment(task))) == []

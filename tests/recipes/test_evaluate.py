"""Evaluation as a run, and how responses of an evaluation are drawn."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.archives import archives, kept_rows
from support.chaos import create_run, finish, outputs, started_twice
from support.experiments import load_config, values_of, write_config, write_inputs
from support.faults import Strike
from support.hosts import run_of, write_task
from support.tiny_runs import tiny_cluster, tiny_data

from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.config.generation import EvaluationConfig, GenerationConfig
from hpcrl.config.model import ModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError
from hpcrl.inspect.reader import RunReader, merged_metrics
from hpcrl.inspect.terminal import render
from hpcrl.inspect.views.summary import summary
from hpcrl.recipes.evaluate import EvaluateExperiment
from hpcrl.recipes.sft import SFTExperiment, SFTModelConfig

ROWS = 10
DRAWN = 3
DRAWING = EvaluationConfig(temperature=1.3, samples_per_prompt=DRAWN, pass_at=(1, 2))
ODD = """
def odd(prompt, response, row):
    return float(len(response) % 2)
"""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder, rows=ROWS)
    (folder / "odd.py").write_text(ODD)
    return folder


def evaluation(task: Path, drawing: EvaluationConfig = DRAWING) -> EvaluateExperiment:
    return EvaluateExperiment(
        control=ControlConfig(epochs=1),
        cluster=tiny_cluster(),
        data=tiny_data(task, evaluate=None),
        actor=ModelConfig(path=str(task / "model")),
        reward=RewardConfig(function=f"{task / 'odd.py'}:odd"),
        generation=GenerationConfig(max_new_tokens=5, slots=4, evaluation=drawing),
    )


def left_by(run: RunDirectory) -> tuple[list[dict[str, Any]], list[Mapping[str, Any]]]:
    """What is kept of each sample, and metrics."""
    found = [
        {
            "id": json.loads(columns["record"][0])["id"],
            "response": columns["responses.text"],
            "reward": [reward for (reward,) in columns["rewards"]],
        }
        for _, _, columns in kept_rows(run)
    ]
    return found, list(merged_metrics(run))


@pytest.fixture(scope="module")
def undisturbed(task: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    run = create_run(tmp_path_factory.mktemp("undisturbed") / "run", evaluation(task))
    assert finish(run) == [0], outputs(run)
    return run


def test_its_numbers_are_those_of_its_lines(undisturbed: RunDirectory) -> None:
    lines, metrics = left_by(undisturbed)
    assert [line["id"] for line in lines] == [str(i) for i in range(ROWS)]
    for step, row in enumerate(metrics):
        of_step = lines[4 * step : 4 * step + 4]
        assert all(len(line["response"]) == len(line["reward"]) == DRAWN for line in of_step)
        assert all(
            reward == len(response) % 2
            for line in of_step
            for response, reward in zip(line["response"], line["reward"], strict=True)
        )
        right = [sum(line["reward"]) for line in of_step]
        assert row["eval_rew/accuracy"] == pytest.approx(sum(right) / (DRAWN * len(of_step)))
        assert row["eval_rew/pass_at_1"] == pytest.approx(row["eval_rew/accuracy"])
        two = [1 - math.comb(DRAWN - int(count), 2) / math.comb(DRAWN, 2) for count in right]
        assert row["eval_rew/pass_at_2"] == pytest.approx(sum(two) / len(of_step))
        assert row["eval_loss/perplexity"] == pytest.approx(math.exp(row["eval_loss/loss"]))
    assert len({response for line in lines for response in line["response"]}) > ROWS


def test_the_summary_has_the_means_over_all_rows_and_not_over_steps(undisturbed: RunDirectory) -> None:
    lines, _ = left_by(undisturbed)
    rewards = [reward for line in lines for reward in line["reward"]]
    with (console := Console(width=200)).capture() as shown:
        console.print(render(summary(RunReader(undisturbed))))
    (row,) = [line.split() for line in shown.get().splitlines() if line.startswith("eval_rew/accuracy")]
    assert float(row[1]) == pytest.approx(sum(rewards) / len(rewards), rel=1e-5)


def test_killed_it_ends_with_the_same_lines_and_numbers_and_repeats_no_work(
    tmp_path: Path, task: Path, undisturbed: RunDirectory
) -> None:
    run = create_run(tmp_path / "run", evaluation(task))
    strike = Strike(tmp_path, "strike", "master", "journal.after", "KILL", "all", 8)
    finish(run, strike)
    assert strike.marker.exists(), "the strike never came: the test tests nothing"
    assert left_by(run) == left_by(undisturbed) and archives(run) == archives(undisturbed), outputs(run)
    assert started_twice(run) == []


@pytest.mark.parametrize("drawing", [EvaluationConfig(), DRAWING], ids=["greedy", "drawn"])
def test_while_training_responses_are_greedy_unless_they_have_a_temperature(
    task: Path, drawing: EvaluationConfig
) -> None:
    experiment = SFTExperiment(
        control=ControlConfig(steps=1, evaluate=Frequency(steps=1)),
        data=tiny_data(task),
        actor=SFTModelConfig(path=str(task / "model")),
        reward=RewardConfig(function=f"{task / 'odd.py'}:odd"),
        generation=GenerationConfig(max_new_tokens=5, evaluation=drawing),
    )
    with run_of(experiment) as conductor:
        made = [conductor.evaluate(step) for step in (1, 2)]
    responses = [[part.tolist() for of_row in done.rows.parts("eval_responses") for part in of_row] for done in made]
    count = len(made[0].rows.ids)
    assert all(len(of_step) == count * drawing.samples_per_prompt for of_step in responses)
    assert (responses[0] == responses[1]) == (drawing.temperature is None)
    assert made[0].mean("eval_loss/loss") == made[1].mean("eval_loss/loss")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("generation.evaluation.samples_per_prompt=2", "temperature is null, so that all would be equal"),
        ("generation.evaluation.pass_at=[1,4]", "pass_at has 4, but generation.evaluation.samples_per_prompt = 1"),
    ],
)
def test_drawings_that_make_no_sense_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, says: str
) -> None:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=says):
        load_config(write_config(Path("config.yaml"), values_of("evaluate")), [wrong])

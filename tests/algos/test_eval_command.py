"""`hpcrl eval` on real processes: a run's own metrics, several models beside each other, killed and gone on with."""

import shutil
from dataclasses import replace
from pathlib import Path
from threading import Timer

import msgspec
import numpy as np
import pytest
from support.chaos import create_run, finish, outputs, wait_until
from support.hosts import write_model, write_task
from support.tiny_ppo import tiny_ppo

from hpcrl.cli.main import main
from hpcrl.config.control import Frequency
from hpcrl.config.data import DataConfig
from hpcrl.config.environment import EnvironmentConfig
from hpcrl.config.generation import EvaluationConfig
from hpcrl.config.model import OptimizerConfig, ReferenceConfig
from hpcrl.config.reward import Component, RewardConfig
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.inspect.reader import merged_metrics
from hpcrl.inspect.views.evaluation import Evaluation, estimate, evaluation
from hpcrl.launch.evaluated import differing
from hpcrl.recipes.dpo import DPOExperiment, DPOModelConfig


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    write_model(folder / "other", "0123456789+=# ", max_positions=64, blocks=1)
    return folder


@pytest.fixture(scope="module")
def run(task: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """It evaluates with two responses to a prompt, drawn at a temperature, after every step that it saves."""
    made = tiny_ppo(task, 4, nodes=1, workers=2)
    own = EvaluationConfig(temperature=0.8, samples_per_prompt=3, pass_at=(1, 2))
    made = replace(
        made,
        control=replace(made.control, evaluate=Frequency(steps=2), export=Frequency()),
        generation=replace(made.generation, evaluation=own),
    )
    run = create_run(tmp_path_factory.mktemp("trained") / "run", made)
    assert finish(run) == [0], outputs(run)
    return run


def evaluated(words: list[str], capsys: pytest.CaptureFixture[str]) -> Evaluation:
    assert main(["eval", *words, "--json"]) == ExitCode.DONE, capsys.readouterr().err
    return msgspec.json.decode(capsys.readouterr().out, type=Evaluation)


def test_a_runs_step_has_exactly_the_metrics_that_the_run_had(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {row["step"]: row for row in merged_metrics(run)}
    for step in (2, 4):
        view = evaluated([f"{run.root}@{step}", "--out", str(tmp_path / str(step))], capsys)
        own = {name: value for name, value in rows[step].items() if name.startswith("eval_")}
        assert len(own) > 5 and view.models[0].metrics == own
        assert view.models[0].figures["reward"].prompts == 4
        assert view.models[0].figures["reward"].mean == pytest.approx(own["eval_rew/reward"], rel=1e-5)
        assert view.models[0].figures["accuracy"].mean == pytest.approx(own["eval_rew/accuracy"])
    assert rows[2]["eval_rew/reward"] != rows[4]["eval_rew/reward"]


TOOL = """
def answer(messages, row):
    digits = sum(map(int, filter(str.isdigit, messages[-1]["content"])))
    return f"{digits % 10}=", digits % 3 == 0, digits / 10
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["in turns with an environment", "in flight"])
def test_a_run_whose_responses_come_about_otherwise_has_its_own_metrics(
    task: Path, tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tool.py").write_text(TOOL)
    made = tiny_ppo(task, 2, nodes=1, workers=1)
    made = replace(made, control=replace(made.control, evaluate=Frequency(steps=2), export=Frequency()))
    generation = replace(made.generation, max_new_tokens=16, stop=("#",))
    if how == "in flight":
        made = replace(made, generation=replace(generation, segment=4, in_flight=made.data.batch_size + 2))
    else:
        talks = EnvironmentConfig(function=f"{tmp_path / 'tool.py'}:answer", max_turns=3)
        reward = RewardConfig(components={"tool": Component(role="environment")})
        made = replace(made, generation=generation, environment=talks, reward=reward)
    run = create_run(tmp_path / "run", made)
    assert finish(run) == [0], outputs(run)
    view = evaluated([f"{run.root}@2", "--out", str(tmp_path / "evals")], capsys)
    own = {name: value for name, value in merged_metrics(run)[-1].items() if name.startswith("eval_")}
    assert view.models[0].metrics == own
    assert any("turn" in name for name in own) == (how != "in flight")


@pytest.mark.slow
def test_models_are_compared_prompt_by_prompt(
    run: RunDirectory, task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["--data", str(task / "held_out.jsonl"), "--reward", f"{task / 'reward.py'}:ones"]
    models = [str(task / "model"), str(task / "other"), f"{run.root}@4"]
    cluster = ["--cluster.device", "cpu", "--cluster.type", "local"]
    drawn = ["--samples", "2", "--temperature", "1", "--max-new-tokens", "6"]
    words = [*models, *base, *drawn, "--out", str(tmp_path / "evals"), *cluster]
    view = evaluated(words, capsys)
    assert [model.model for model in view.models] == models
    assert view.not_compared == ()
    assert [it.model for it in view.differences if it.figure == "reward"] == models[1:]
    first, other = view.models[0].figures["reward"], view.models[1].figures["reward"]
    assert view.differences[0].difference.mean == pytest.approx(other.mean - first.mean)
    assert evaluated(words, capsys) == view, "what is done is not run again"
    assert main(["eval", *words]) == ExitCode.DONE
    said = capsys.readouterr().out
    assert f"{models[1]} − {models[0]}" in said and "Intervals: 95 %, normal approximation over prompts." in said


def test_a_folder_that_holds_an_evaluation_of_something_else_is_refused(
    run: RunDirectory, task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "evals")]
    shutil.copy(task / "held_out.jsonl", tmp_path / "rows.jsonl")
    data = ["--data", str(tmp_path / "rows.jsonl")]
    view = evaluated([f"{run.root}@2", *data, *out], capsys)

    def refused(*words: str) -> str:
        assert main(["eval", *words, *out, "--json"]) == ExitCode.CONFIGURATION
        said = capsys.readouterr()
        assert said.out == "" and "model-1 holds an evaluation of something else than" in said.err
        assert "Name another folder with --out" in said.err and ("RUN@STEP" in said.err) == ("@" not in words[0])
        return said.err

    step = f"{run.root}@2"
    assert f"{run.export('actor', 4)} (was {run.export('actor', 2)})" in refused(f"{run.root}@4", *data)
    assert f"{run.export('actor', 4)} (was {run.export('actor', 2)})" in refused(str(run.root), *data)
    assert "data.train = " in refused(step)
    assert "reward.function = exact (was " in refused(step, *data, "--reward", "exact")
    assert "generation.evaluation.samples_per_prompt = 2 (was 3)" in refused(step, *data, "--samples", "2")
    assert "generation.top_k = 3 (was 0)" in refused(step, *data, "--generation.top_k", "3")
    assert evaluated([step, *data, *out], capsys) == view
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "model-1").symlink_to(run.root)
    assert main(["eval", step, *data, "--out", str(tmp_path / "others")]) == ExitCode.CONFIGURATION
    assert "is a run of ppo. Name another folder with --out." in " ".join(capsys.readouterr().err.split())
    lines = (task / "held_out.jsonl").read_text().splitlines()
    (tmp_path / "rows.jsonl").write_text("\n".join(lines[::-1]) + "\n")
    assert f"data.train: {tmp_path / 'rows.jsonl'} has other content" in refused(step, *data)
    (tmp_path / "rows.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    assert "bytes and had" in refused(step, *data)


def test_an_evaluation_is_shown_when_the_checkpoint_is_gone(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"{tmp_path / 'run'}@2", "--out", str(tmp_path / "evals")]
    shutil.copytree(run.root, tmp_path / "run", symlinks=True)
    view = evaluated(words, capsys)
    for folder in (tmp_path / "run" / "checkpoints").glob("step-00000002*"):
        shutil.rmtree(folder)
    assert evaluated(words, capsys) == view


def test_models_that_were_asked_otherwise_are_not_compared(
    run: RunDirectory, task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run has its own lengths, prompts and data, and a folder has the defaults."""
    copy = tmp_path / "moved" / "rows.jsonl"
    copy.parent.mkdir()
    shutil.copy(task / "held_out.jsonl", copy)
    out = ["--out", str(tmp_path / "evals"), "--cluster.type", "local", "--cluster.device", "cpu"]
    out += ["--max-new-tokens", "6"]
    words = [f"{run.root}@2", str(task / "model"), "--data", str(copy), "--reward", f"{task / 'reward.py'}:ones"]
    view = evaluated([*words, *out], capsys)
    [apart] = view.not_compared
    assert (apart.model, apart.against) == (str(task / "model"), f"{run.root}@2")
    drawn = {f"generation.evaluation.{name}" for name in ("temperature", "samples_per_prompt")}
    assert drawn <= set(apart.settings) and {it.partition(".")[0] for it in apart.settings} == {"generation"}
    assert view.differences == () and len(view.models) == 2
    assert main(["eval", *words, *out]) == ExitCode.DONE
    said = " ".join(capsys.readouterr().out.split())
    assert f"{task / 'model'} is not compared with {run.root}@2, which was asked or judged otherwise." in said
    assert "generation.evaluation.temperature" in said

    def made(folder: str, *words: str) -> RunDirectory:
        assert main(["eval", f"{run.root}@2", "--out", str(tmp_path / folder), *words]) == ExitCode.DONE
        return RunDirectory.open(tmp_path / folder / "model-1")

    first = RunDirectory.open(tmp_path / "evals" / "model-1")
    own = made("own", "--max-new-tokens", "6")
    assert differing(first, own) == (), "the contents of files count, not where they are"
    (tmp_path / "reward.py").write_text((task / "reward.py").read_text() + "\nOTHER = 1\n")
    copy.write_text("".join(sorted(copy.read_text().splitlines(keepends=True), reverse=True)))
    other = made("other", "--data", str(copy), "--reward", f"{tmp_path / 'reward.py'}:ones")
    assert differing(first, other) == ("data.train", "reward.function")


def test_an_evaluation_that_is_under_way_is_waited_for(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    held = "import os, time\ndef held(prompt, response, row):\n"
    held += f"    while os.path.exists({str(hold)!r}):\n        time.sleep(0.05)\n    return 1.0\n"
    (tmp_path / "held.py").write_text(held)
    words = [f"{run.root}@2", "--reward", f"{tmp_path / 'held.py'}:held", "--reward.trial_rows", "0"]
    words += ["--out", str(tmp_path / "evals")]
    assert main(["eval", *words, "--detach"]) == ExitCode.DONE
    sent = RunDirectory(tmp_path / "evals" / "model-1")
    assert main(["eval", *words, "--detach"]) == ExitCode.DONE
    assert f"{sent.root} is running or queued" in capsys.readouterr().err
    wait_until(lambda: sent.newest_attempt() is not None, 60, "the evaluation's first attempt")
    assert main(["stop", str(sent.root), "--now"]) == ExitCode.DONE
    wait_until(lambda: sent.newest_verdict() is not None, 60, "the end of the first attempt")
    slower = [*words, "--cluster.heartbeat_s", "0.5"]
    assert main(["eval", *slower, "--detach"]) == ExitCode.DONE, "where and how it runs may change"
    assert "with cluster.heartbeat_s = 0.5" in capsys.readouterr().err
    wait_until(lambda: sent.newest_attempt() == 1, 60, "the second attempt")
    assert main(["eval", *words, "--cluster.heartbeat_s", "0.4", "--detach"]) == ExitCode.DONE
    assert (
        f"{sent.root} is under way, and keeps its settings: without cluster.heartbeat_s=0.4" in capsys.readouterr().err
    )
    Timer(1.0, hold.unlink).start()
    assert evaluated(slower, capsys).models[0].figures["reward"].mean == 1.0
    assert sent.numbers() == [0, 1] and len(sent.submissions()) == 2
    assert evaluated([*words, "--cluster.heartbeat_s", "0.4"], capsys).models[0].metrics, "it is done"


def test_an_evaluation_that_was_only_sent_is_shown_by_the_same_command(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"{run.root}@2", "--out", str(tmp_path / "evals")]
    assert main(["eval", *words, "--detach"]) == ExitCode.DONE
    capsys.readouterr()
    sent = RunDirectory(tmp_path / "evals" / "model-1")
    wait_until(lambda: sent.newest_verdict() is not None, 60, "the end of the evaluation")
    assert evaluated(words, capsys).models[0].metrics


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["{task}/model"], "{task}/model is no run, so that --data and --reward must be given."),
        (["{task}/model", "{task}/model"], "a model is named twice."),
        (["{run}@3"], "it has 2, 4."),
        (["{task}/none", "--data", "x", "--reward", "exact"], "is no model and no run"),
        (["no-such-run"], "no-such-run is no model and no run: there is no config.json"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    run: RunDirectory, task: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = [word.format(run=run.root, task=task) for word in words]
    assert main(["eval", *given, "--out", str(tmp_path / "evals")]) == ExitCode.CONFIGURATION
    assert says.format(run=run.root, task=task) in capsys.readouterr().err
    assert not (tmp_path / "evals").exists()


def test_a_run_that_scores_nothing_wants_a_reward(
    task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, rows = str(task / "model"), str(task / "rows.jsonl")
    optimizer = OptimizerConfig(lr=0.01)
    dpo = DPOExperiment(
        data=DataConfig(train=rows, batch_size=4),
        actor=DPOModelConfig(path=path, optimizer=optimizer),
        reference=ReferenceConfig(path=path),
    )
    run = create_run(tmp_path / "dpo", dpo)
    shutil.copytree(task / "model", run.export("actor", 1))
    words = ["eval", f"{run.root}@1", "--data", rows, "--out", str(tmp_path / "evals"), "--cluster.device", "cpu"]
    assert main(words) == ExitCode.CONFIGURATION
    assert "the run has no reward, so that --reward must be given. Give it." in capsys.readouterr().err
    assert not (tmp_path / "evals").exists()
    scored = ["--reward.components", "{a: {function: exact}}", "--reward.function", "null", "--max-new-tokens", "4"]
    assert main([*words, *scored, "--cluster.type", "local"]) == ExitCode.DONE


def test_intervals_are_those_of_the_normal_approximation() -> None:
    draw = np.random.default_rng(0)
    inside = 0
    for _ in range(2000):
        found = estimate(draw.normal(3.0, 2.0, 50).tolist())
        assert found.low is not None and found.high is not None
        inside += found.low <= 3.0 <= found.high
    assert 0.92 < inside / 2000 < 0.97
    assert estimate([1.0]).low is None


def test_a_difference_is_over_the_prompts_that_both_answered() -> None:
    scores = ({"reward": {"a": [1.0, 0.0], "b": [1.0]}}, {"reward": {"b": [0.0], "c": [7.0]}})
    view = evaluation(["one", "two"], ["1", "2"], scores, ({}, {}), ((), ()))
    assert view.models[0].figures["reward"].mean == 0.75
    [difference] = view.differences
    assert (difference.difference.mean, difference.difference.prompts, difference.difference.low) == (-1.0, 1, None)
    apart = evaluation(["one", "two"], ["1", "2"], scores, ({}, {}), ((), ("data.train",)))
    assert apart.differences == () and apart.models == view.models
    assert [(it.model, it.against, it.settings) for it in apart.not_compared] == [("two", "one", ("data.train",))]

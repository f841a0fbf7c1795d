"""A reward model is a role: its scores are a component of the reward, of the run's tokens or of their text."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.experiments import VALUES
from support.hosts import LETTERS, run_of, write_task
from support.tiny_ppo import tiny_ppo
from transformers import LlamaConfig, LlamaForSequenceClassification

from hpcrl.config.classifier import ClassifierConfig
from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.config.data import DataConfig
from hpcrl.config.model import ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.config.validate import collect
from hpcrl.data.inputs import input_files
from hpcrl.recipes.algorithm import algorithm_of

COMPONENTS = {"judge": {"role": "reward_model", "weight": 2.0}, "right": {"function": "exact"}}


def write_judge(folder: Path, labels: int) -> torch.nn.Module:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(LETTERS) + 1,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        num_labels=labels,
    )
    model = LlamaForSequenceClassification(config).eval()
    model.save_pretrained(folder / "judge")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / "model" / name, folder / "judge" / name)
    return model


def judged(folder: Path, **settings: Any) -> Any:
    return replace(
        tiny_ppo(folder, nodes=1, workers=1),
        control=ControlConfig(steps=2, evaluate=Frequency(steps=1)),
        reward=RewardConfig(components=COMPONENTS),
        reward_model=ClassifierConfig(path=str(folder / "judge"), **settings),
    )


@pytest.mark.parametrize("own_tokenizer", [False, True])
def test_a_models_score_of_the_tokens_is_weighted_into_the_reward(tmp_path: Path, own_tokenizer: bool) -> None:
    write_task(tmp_path)
    model = write_judge(tmp_path, 1)
    if own_tokenizer:
        tokenizer = tmp_path / "judge" / "tokenizer.json"
        tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()), indent=1))
    with run_of(judged(tmp_path)) as conductor:
        rows = conductor.step(1).rows
    for prompt, response, score, components, reward in zip(
        *(rows.rows(key) for key in ("prompts", "responses", "model_scores", "reward_components", "rewards")),
        strict=True,
    ):
        tokens = [*prompt.tolist(), *response.tolist()]
        if own_tokenizer:
            tokens = [token for token in tokens if token != len(LETTERS)]
        with torch.no_grad():
            (logits,) = model(input_ids=torch.tensor([tokens])).logits
        assert score.tolist() == pytest.approx(logits.tolist(), abs=1e-5)
        assert components[0] == score[0]
        assert reward.tolist() == [np.float32(2.0 * float(score[0]) + float(components[1]))]


def test_the_model_is_called_where_a_component_has_it_and_its_files_are_watched(tmp_path: Path) -> None:
    write_task(tmp_path)
    write_judge(tmp_path, 1)
    experiment = judged(tmp_path)
    algorithm = algorithm_of(experiment)
    assert {"rm_inf", "eval_rm"} <= {call.name for call in algorithm.calls(experiment)}
    named = {path.name for path in input_files(experiment, algorithm.rows)["reward_model.path"]}
    assert named == {"config.json", "model.safetensors"}
    without = replace(experiment, reward=RewardConfig(function="exact"))
    assert "reward_model" not in {call.role for call in algorithm.calls(without)}


@pytest.mark.parametrize(
    ("labels", "settings", "what"),
    [
        (3, {}, "reward_model.label is not set, but"),
        (3, {"label": "GOOD"}, "reward_model.label = GOOD must be one of LABEL_0, LABEL_1, LABEL_2"),
        (1, {"label": "LABEL_0"}, "reward_model.label = LABEL_0 must be null: the model has one label"),
        (0, {}, "must be a folder of a classifier, but its config.json cannot be read"),
    ],
)
def test_a_label_or_a_folder_that_makes_no_sense_is_named(
    tmp_path: Path, labels: int, settings: dict[str, Any], what: str
) -> None:
    write_task(tmp_path)
    if labels:
        write_judge(tmp_path, labels)
    (problem,) = (str(it) for it in collect(judged(tmp_path, **settings), VALUES, []))
    assert what in problem


def test_a_greedy_response_is_judged_by_the_model_too(tmp_path: Path) -> None:
    write_task(tmp_path)
    reward = RewardConfig(components=COMPONENTS)
    algorithm = algorithm_of("remax")

    experiment = algorithm.experiment(
        data=DataConfig(train=str(tmp_path / "rows.jsonl"), batch_size=4),
        actor=TrainedModelConfig(path=str(tmp_path / "model")),
        reference=ReferenceConfig(path=str(tmp_path / "model")),
        reward=reward,
    )
    calls = {call.name: call for call in algorithm.recipe(experiment)}
    assert calls["base_rm"].outputs == ("base_model_scores",)
    assert "base_model_scores" in calls["base_rew"].inputs and calls["base_rew"].outputs == ("base_rewards",)
    algorithm.graph(experiment)

"""A reward model is a role: its scores are a component of the reward, of the run's tokens or of their text."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.experiments import VALUES
from support.hosts import LETTERS, run_of, write_task
from support.judges import write_judge
from support.tiny_models import tiny_config
from support.tiny_ppo import tiny_ppo

from hpcrl.config.classifier import ClassifierConfig
from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.config.data import DataConfig
from hpcrl.config.model import ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.config.validate import collect
from hpcrl.data.inputs import input_files
from hpcrl.models.pretrained import write_random_pretrained
from hpcrl.placement.check import ALL_CHECKS
from hpcrl.placement.memory import estimate_models
from hpcrl.placement.plan import ModelName, plan_for
from hpcrl.recipes.algorithm import algorithm_of, experiment_from

COMPONENTS = {"judge": {"role": "reward_model", "weight": 2.0}, "right": {"function": "exact"}}


def judged(folder: Path, **settings: Any) -> Any:
    return replace(
        tiny_ppo(folder, nodes=1, workers=1),
        control=ControlConfig(steps=2, evaluate=Frequency(steps=1)),
        reward=RewardConfig(components=COMPONENTS),
        reward_model=ClassifierConfig(**{"path": str(folder / "judge"), **settings}),
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


@pytest.mark.parametrize("labels", [1, 2])
def test_a_text_that_is_too_long_loses_its_beginning(tmp_path: Path, labels: int) -> None:
    """The run's own tokens too; by our engine, and by transformers."""
    write_task(tmp_path)
    model, config = write_judge(tmp_path, labels), tmp_path / "judge" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 9}))
    with run_of(judged(tmp_path, label=None if labels == 1 else "LABEL_1")) as conductor:
        rows = conductor.step(1).rows
    lengths = set()
    for key in zip(*(rows.rows(key) for key in ("prompts", "responses", "model_scores")), strict=True):
        tokens = np.concatenate(key[:2])
        lengths.add(len(tokens))
        with torch.no_grad():
            (logits,) = model(input_ids=torch.tensor(tokens[None, -9:])).logits
        expected = logits[0] if labels == 1 else logits.softmax(-1)[1]
        assert key[2].tolist() == pytest.approx([float(expected)], abs=1e-5)
    assert min(lengths) < 9 < max(lengths)


@pytest.mark.parametrize("labels", [1, 2])
def test_a_token_that_no_text_has_is_left_out_where_the_model_has_none_such(tmp_path: Path, labels: int) -> None:
    """The actor's vocabulary is padded; the model's is not. By our engine, and by transformers."""
    write_task(tmp_path)
    model = write_judge(tmp_path, labels)
    padded = tiny_config(vocabulary_size=len(LETTERS) + 9, max_positions=64)
    write_random_pretrained(tmp_path / "model", padded, seed=1)
    with run_of(judged(tmp_path, label=None if labels == 1 else "LABEL_1")) as conductor:
        rows = conductor.step(1).rows
    beyond = 0
    for key in zip(*(rows.rows(key) for key in ("prompts", "responses", "model_scores")), strict=True):
        tokens = np.concatenate(key[:2])
        beyond += int((tokens > len(LETTERS)).sum())
        with torch.no_grad():
            (logits,) = model(input_ids=torch.tensor(tokens[None, tokens <= len(LETTERS)])).logits
        expected = logits[0] if labels == 1 else logits.softmax(-1)[1]
        assert key[2].tolist() == pytest.approx([float(expected)], abs=1e-5)
    assert beyond > 0


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


def in_a_buffer(model: torch.nn.Module) -> int:
    """Its numbers where each parameter begins at a multiple of 64."""
    return sum(-(-parameter.numel() // 64) * 64 for parameter in model.parameters())


@pytest.mark.parametrize(("dtype", "size", "widest"), [("fp32", 4, 144), ("bf16", 2, 152)])
def test_a_plan_counts_its_parameters_and_a_block_of_a_pass(tmp_path: Path, dtype: str, size: int, widest: int) -> None:
    """`widest` are the numbers of a token in a block where it has most: with 16 of hidden size, what goes past it, its
    input and output, q, k and v, and what attention makes of them; the MLP's 24 have fewer."""
    write_task(tmp_path)
    model = write_judge(tmp_path, 1)
    experiment = judged(tmp_path, dtype=dtype, micro_batch_tokens=10)
    (memory,) = estimate_models(plan_for(experiment, nodes=1), experiment)[ModelName("reward_model")]
    assert memory.parameters == size * in_a_buffer(model)
    assert memory.working == 10 * widest * size
    assert memory.gradients == memory.optimizer == memory.kv_cache == 0


def test_a_stage_has_its_share_of_a_family_that_hpcrl_knows_and_all_of_another(tmp_path: Path) -> None:
    write_task(tmp_path)
    model = write_judge(tmp_path, 1)
    split = replace(judged(tmp_path, layout="p2"), cluster=ClusterConfig(workers_per_node=2))
    assert not collect(split, ALL_CHECKS, [])
    stages = estimate_models(plan_for(split, nodes=1), split)[ModelName("reward_model")]
    assert len(stages) == 2
    held = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert sum(stage.parameters for stage in stages) == 4 * in_a_buffer(model)

    config = tmp_path / "judge" / "config.json"
    config.write_text(config.read_text().replace('"hidden_act": "silu"', '"hidden_act": "gelu"'))
    (problem,) = map(str, collect(split, ALL_CHECKS, []))
    assert problem == (
        "reward_model.layout = p2 splits a model over workers by pp, but transformers loads it, whole on each: "
        f"{config}: hidden_act = 'gelu' would change the mathematics; only 'silu' is supported. "
        "Set reward_model.layout to d2."
    )
    (memory,) = estimate_models(plan_for(judged(tmp_path), nodes=1), judged(tmp_path))[ModelName("reward_model")]
    assert memory.parameters == held


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_a_plan_counts_the_parameters_of_a_pickle_by_its_size(tmp_path: Path, stored: torch.dtype) -> None:
    write_task(tmp_path)
    model, judge = write_judge(tmp_path, 1), tmp_path / "judge"
    (judge / "model.safetensors").unlink()
    torch.save(model.to(stored).state_dict(), judge / "pytorch_model.bin")
    torch.save({"lr": torch.zeros(9999)}, judge / "training_args.bin")
    config = json.loads((judge / "config.json").read_text())
    config |= {"dtype": str(stored).removeprefix("torch.")}
    (judge / "config.json").write_text(json.dumps(config))
    experiment = judged(tmp_path)
    (memory,) = estimate_models(plan_for(experiment, nodes=1), experiment)[ModelName("reward_model")]
    size = (judge / "pytorch_model.bin").stat().st_size
    assert memory.parameters == size // stored.itemsize * 4 > 4 * sum(it.numel() for it in model.parameters())


@pytest.mark.parametrize(
    ("labels", "settings", "what"),
    [
        (3, {}, "reward_model.label is not set, but"),
        (1, {"path": None}, "reward_model.path is not set, but reward.components.judge scores with its model"),
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


@pytest.mark.parametrize("algorithm", ["evaluate", "sft"])
def test_a_model_judges_the_responses_of_an_evaluation(tmp_path: Path, algorithm: str) -> None:
    write_task(tmp_path)
    write_judge(tmp_path, 1)
    values: dict[str, Any] = {
        "algorithm": algorithm,
        "control": {"steps": 1, "evaluate": {"steps": 1}},
        "data": {"train": str(tmp_path / "rows.jsonl"), "evaluate": str(tmp_path / "rows.jsonl"), "batch_size": 12},
        "actor": {"path": str(tmp_path / "model")},
        "reward": {"components": {"judge": {"role": "reward_model"}}},
        "reward_model": {"path": str(tmp_path / "judge")},
        "generation": {
            "max_new_tokens": 4,
            "evaluation": {"temperature": 1.0, "samples_per_prompt": 2, "pass_at": [2]},
        },
    }
    with run_of(experiment_from(values)) as conductor:
        done = conductor.step(1) if algorithm == "evaluate" else conductor.evaluate(1)
    prefix = "" if algorithm == "evaluate" else "eval_"
    scores, rewards = (done.rows.data[f"{prefix}{key}"] for key in ("model_scores", "rewards"))
    assert len(rewards) == 2 * 12 and scores.tolist() == rewards.tolist()
    assert done.mean("eval_rew/judge") == pytest.approx(float(rewards.mean()), abs=1e-6)
    assert 0 <= done.mean("eval_rew/pass_at_2") <= 1


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

"""SFT and PPO on rows of GSM8K, where the shared data is at hand."""

import json
from itertools import islice
from pathlib import Path

import pytest
from support.hosts import run_of, write_model

from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.config.data import DataConfig
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import OptimizerConfig, ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.recipes.ppo import CriticConfig, PPOExperiment
from hpcrl.recipes.sft import SFTExperiment, SFTModelConfig

GSM8K = Path(__file__).parents[3] / "shared" / "data" / "gsm8k" / "train.jsonl"
ROWS = 24

pytestmark = pytest.mark.skipif(not GSM8K.is_file(), reason=f"{GSM8K} is not there")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("gsm8k")
    with GSM8K.open() as file:
        lines = list(islice(file, ROWS))
    texts = "".join(row["prompt"] + row["answer"] for row in map(json.loads, lines))
    write_model(path / "model", "".join(sorted(set(texts) | {" "})), max_positions=1024)
    (path / "rows.jsonl").write_text("".join(lines))
    return path


def common(folder):
    rows = str(folder / "rows.jsonl")
    return {
        "control": ControlConfig(steps=4, evaluate=Frequency(steps=1)),
        "data": DataConfig(
            train=rows, evaluate=rows, evaluate_rows=4, batch_size=8, prompt_template="Q: {prompt}\nA: "
        ),
        "generation": GenerationConfig(max_new_tokens=24),
    }


def test_supervised_training_learns_from_real_answers(folder):
    actor = SFTModelConfig(path=str(folder / "model"), optimizer=OptimizerConfig(lr=0.02))
    with run_of(SFTExperiment(actor=actor, reward=RewardConfig(function="gsm8k"), **common(folder))) as conductor:
        losses = [conductor.step(step).mean("actor_train/loss") for step in range(1, 5)]
        assert losses[-1] < 0.8 * losses[0]
        assert conductor.evaluate(4).mean("eval_rew/accuracy") == 0.0


def test_policy_optimisation_runs_on_real_prompts(folder):
    model, fast = str(folder / "model"), OptimizerConfig(lr=0.01)
    experiment = PPOExperiment(
        actor=TrainedModelConfig(path=model, optimizer=fast),
        critic=CriticConfig(path=model, optimizer=fast),
        reference=ReferenceConfig(path=model),
        reward=RewardConfig(function="gsm8k"),
        **common(folder),
    )
    with run_of(experiment) as conductor:
        done = [conductor.step(step) for step in (1, 2)]
    assert done[0].records["actor_train"]["digest"] != done[1].records["actor_train"]["digest"]
    assert {length for step in done for length in step.rows.length("responses")} <= set(range(1, 25))
    assert done[1].mean("rew_inf/reward") == 0.0

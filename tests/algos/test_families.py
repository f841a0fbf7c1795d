"""Runs on models that are no qwen2: learning on two ranks as on one, going on from a checkpoint, PPO on each family."""

from dataclasses import replace

import numpy as np
import pytest
from support.hosts import LETTERS, run_of, write_task
from support.pool import gloo_pool
from support.tiny_models import gemma3_config, gpt2_config, qwen3_config, tiny_config

from hpcrl.config.control import ControlConfig
from hpcrl.config.data import DataConfig
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import OptimizerConfig, ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.families import family, gemma, gemma2, gemma3_text, gpt2
from hpcrl.families.config import Experts, RotaryConfig
from hpcrl.models.pretrained import write_random_pretrained
from hpcrl.models.reading import TensorFiles
from hpcrl.plugins import names
from hpcrl.recipes.grpo import GRPOConfig, GRPOExperiment
from hpcrl.recipes.ppo import PPOExperiment

SIZES = {"vocabulary_size": len(LETTERS) + 1, "hidden_size": 16, "intermediate_size": 24, "heads": 4, "head_dim": 4}


@pytest.fixture(scope="module", params=[qwen3_config, gpt2_config, gemma3_config], ids=["qwen3", "gpt2", "gemma3"])
def experiment(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    model = request.param(**SIZES, max_positions=32, initializer_range=0.3)
    write_random_pretrained(folder / "own", model, seed=1, tokenizer_from=folder / "model")
    path = str(folder / "own")
    return GRPOExperiment(
        control=ControlConfig(steps=4),
        data=DataConfig(train=str(folder / "rows.jsonl"), batch_size=4, samples_per_prompt=3),
        actor=TrainedModelConfig(path=path, dtype="fp64", optimizer=OptimizerConfig(lr=0.01), micro_batch_tokens=30),
        reference=ReferenceConfig(path=path, dtype="fp64"),
        reward=RewardConfig(function=str(folder / "reward.py:ones")),
        generation=GenerationConfig(max_new_tokens=8, slots=4),
        grpo=GRPOConfig(),
    )


def test_two_ranks_learn_as_one_in_float64(experiment):
    def two_steps(pool):
        with run_of(experiment, pool) as conductor:
            return [conductor.step(step) for step in (1, 2)]

    with gloo_pool(2) as pool:
        for left, right in zip(two_steps(None), two_steps(pool), strict=True):
            found, expected = right.rows.select(left.rows.ids).rows("responses"), left.rows.rows("responses")
            assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
            assert right.mean("actor_train/loss") == pytest.approx(left.mean("actor_train/loss"), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_run_continued_from_its_checkpoint_is_bit_identical(experiment, tmp_path, dtype):
    experiment = replace(experiment, actor=replace(experiment.actor, dtype=dtype))
    with run_of(experiment) as conductor:
        conductor.step(1)
        checkpoint = conductor.save(tmp_path)
        through = conductor.step(2)
    with run_of(experiment, None, checkpoint) as conductor:
        resumed = conductor.step(2)
    assert resumed.records == through.records
    assert all(np.array_equal(resumed.rows.data[key], through.rows.data[key]) for key in through.rows.keys)


PLAIN = {"qkv_bias": False}
FAMILIES = {
    "llama": {**PLAIN, "mlp_bias": True, "rotary": RotaryConfig(1e4, "llama3", 8.0, 1.0, 4.0, 16)},
    "mistral": {**PLAIN, "windows": (6, 6)},
    "qwen2": {"windows": (0, 5)},
    "qwen3": {**PLAIN, "head_norms": True},
    "gemma": {**PLAIN, **gemma.CHOICES, "tied": True},
    "gemma2": {**PLAIN, **gemma2.CHOICES, "windows": (5, 0), "attention_softcap": 2.0, "logit_softcap": 3.0},
    "gemma3_text": {**PLAIN, **gemma3_text.CHOICES, "windows": (5, 0), "window_rotary": RotaryConfig(100.0)},
    "gpt2": {**gpt2.CHOICES, "kv_heads": 4, "tied": True},
    "mixtral": {**PLAIN, "experts": Experts(4, 2, 24)},
    "qwen3_moe": {**PLAIN, "head_norms": True, "experts": Experts(6, 3, 8, normalized=False)},
}


def test_each_family_is_tried():
    assert FAMILIES.keys() == set(names(family.FAMILIES))


@pytest.mark.parametrize("name", FAMILIES)
def test_two_steps_of_ppo_follow_from_what_they_began_with(name, tmp_path):
    """Actor and critic learn, and a run that begins at the checkpoint between them learns the same, to the bit."""
    write_task(tmp_path)
    config = tiny_config(**{**SIZES, "max_positions": 32, "initializer_range": 0.3, "family": name, **FAMILIES[name]})
    write_random_pretrained(tmp_path / "own", config, seed=1, tokenizer_from=tmp_path / "model")
    trained = TrainedModelConfig(path=str(tmp_path / "own"), optimizer=OptimizerConfig(lr=0.01))
    experiment = PPOExperiment(
        control=ControlConfig(steps=4),
        data=DataConfig(train=str(tmp_path / "rows.jsonl"), batch_size=4),
        actor=trained,
        critic=trained,
        reference=ReferenceConfig(path=trained.path),
        reward=RewardConfig(function=str(tmp_path / "reward.py:ones")),
        generation=GenerationConfig(max_new_tokens=8, slots=4),
    )
    with run_of(experiment) as conductor:
        first = conductor.step(1)
        checkpoint = conductor.save(tmp_path / "checkpoint")
        second = conductor.step(2)
    assert all(done.mean(f"{role}_train/grad_norm") > 0 for done in (first, second) for role in ("actor", "critic"))
    with run_of(experiment, None, checkpoint) as conductor:
        again = conductor.step(2)
    assert again.records == second.records


def test_who_goes_on_from_a_checkpoint_reads_nothing_of_what_the_run_began_with(experiment, tmp_path, monkeypatch):
    read = []
    packed = TensorFiles.packed
    monkeypatch.setattr(
        TensorFiles, "packed", lambda self, reads, like: read.extend(reads) or packed(self, reads, like)
    )
    with run_of(experiment) as conductor:
        conductor.step(1)
        checkpoint = conductor.save(tmp_path)
    roles = len({replica.role for replica in conductor.plan.replicas} & {"actor", "reference"})
    at_first, read[:] = len(read), []
    with run_of(experiment, None, checkpoint):
        assert len(read) * roles == at_first * (roles - 1)

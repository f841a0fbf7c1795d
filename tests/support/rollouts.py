"""Rollouts without a generator: random texts with the log-probabilities and values that tiny models give them."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from support.tiny import native, random_rows

from hpcrl.algos.policy import Policy
from hpcrl.algos.ppo import advantages
from hpcrl.config.data import DataConfig
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.kl import KLConfig
from hpcrl.config.model import OptimizerConfig, ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.data.samples import SequenceSample
from hpcrl.dataflow.graph import MFC
from hpcrl.engines.engine import Sequences
from hpcrl.recipes.algorithm import algorithm_of, experiment_from
from hpcrl.recipes.policy import policy_of
from hpcrl.recipes.ppo import CriticConfig, PPOConfig, PPOExperiment
from hpcrl.recipes.sft import SFTExperiment, SFTModelConfig
from hpcrl.workers.host import Outcome, Work

DATA = DataConfig(train="train.jsonl", batch_size=8)


def ppo_experiment(
    ppo: PPOConfig,
    actor: OptimizerConfig | None = None,
    critic: OptimizerConfig | None = None,
    temperature: float = 0.8,
) -> PPOExperiment:
    return PPOExperiment(
        data=DATA,
        actor=TrainedModelConfig(path="actor", optimizer=actor or OptimizerConfig(lr=0.01)),
        critic=CriticConfig(path="critic", optimizer=critic or OptimizerConfig(lr=0.01)),
        reference=ReferenceConfig(path="actor"),
        reward=RewardConfig(function="exact"),
        generation=GenerationConfig(max_new_tokens=20, temperature=temperature),
        ppo=ppo,
    )


def sft_experiment(optimizer: OptimizerConfig) -> SFTExperiment:
    return SFTExperiment(data=DATA, actor=SFTModelConfig(path="actor", optimizer=optimizer))


def trained_by(role: Any, work: Work, call: MFC) -> Outcome:
    """What the role's train_step gives, with the digest that a host puts into the record."""
    outcome = role.train_step(work, call)
    return replace(outcome, record={**outcome.record, "digest": role.engine.digest()})


def rollout(count: int, seed: int = 0, temperature: float = 0.8) -> SequenceSample:
    """A whole step's batch, as the graph delivers it to a train_step."""
    prompts, responses = random_rows(count, seed)
    sequences = Sequences.from_rows(prompts, responses)
    log_probs = native(optimizer=None).forward(sequences, temperature)
    values = native("value", optimizer=None).forward(sequences)
    draw = np.random.default_rng(seed)
    cuts = np.cumsum(sequences.labels)[:-1]
    noise = draw.normal(0, 0.3, len(log_probs)).astype(np.float32)
    return SequenceSample.from_rows(
        [f"{i}@0" for i in range(count)],
        {
            "prompts": prompts,
            "responses": responses,
            "finished": [np.array([i % 4 != 0]) for i in range(count)],
            "logprobs": np.split(log_probs, cuts),
            "ref_logprobs": np.split(log_probs + noise, cuts),
            "rewards": [draw.normal(0, 1, 1).astype(np.float32) for _ in range(count)],
            "values": np.split(values, cuts),
        },
    )


def cut(ids: Sequence[str], parts: int) -> tuple[tuple[str, ...], ...]:
    """Mini-batches."""
    return tuple(tuple(part) for part in np.array_split(np.array(ids), parts))


def ppo_actor(engine: Any, experiment: PPOExperiment) -> Policy:
    return Policy(engine, experiment, advantages)


def tracking_kl(adaptive: bool = True) -> KLConfig:
    return KLConfig(mode="reward", coef=0.1, estimator="k1", adaptive=adaptive, target=0.05, horizon=100.0)


def policy_experiment(name: str, **section: Any) -> Any:
    """Of any algorithm with a policy, whose own section has these settings."""
    known = algorithm_of(name).experiment
    values: dict[str, Any] = {
        "algorithm": name,
        "data": {"train": "train.jsonl", "batch_size": 8},
        "actor": {"path": "actor"},
        "critic": {"path": "critic"},
        "reference": {"path": "actor"},
        "reward": {"function": "exact"},
        "generation": {"max_new_tokens": 20, "temperature": 0.8},
    }
    made = experiment_from({key: value for key, value in values.items() if key in {f.name for f in fields(known)}})
    return replace(made, **{name: replace(policy_of(made), **section)})


def group_rollout(rows: int, per_row: int, seed: int = 0) -> SequenceSample:
    """A step's batch with all that any policy's train_step reads, which no model made; one sample has no score."""
    count, draw = rows * per_row, np.random.default_rng(seed)
    prompts, responses = random_rows(count, seed)
    base = [response[: 1 + len(response) // 2] for response in responses[::-1]]

    def per_token(spread: float = 1.0, mean: float = 0.0) -> list[np.ndarray]:
        return [draw.normal(mean, spread, len(response)).astype(np.float32) for response in responses]

    def per_sample() -> list[np.ndarray]:
        return [draw.normal(0, 1, 1).astype(np.float32) for _ in range(count)]

    return SequenceSample.from_rows(
        [f"r{i // per_row}@0#{i % per_row}" for i in range(count)],
        {
            "prompts": prompts,
            "responses": responses,
            "finished": [np.array([i % 4 != 0]) for i in range(count)],
            "logprobs": per_token(mean=-1.0),
            "ref_logprobs": per_token(mean=-1.0),
            "rewards": [row * np.float32(np.nan if i == 6 else 1.0) for i, row in enumerate(per_sample())],
            "values": per_token(),
            "values_after": per_sample(),
            "base_responses": base,
            "base_finished": [np.array([i % 3 != 0]) for i in range(count)],
            "base_rewards": per_sample(),
        },
    )

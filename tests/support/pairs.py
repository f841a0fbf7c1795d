"""Batches of pairs over the tiny models' vocabulary, as the graph delivers them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from support.tiny import CONFIG, native

from hpcrl.algos.dpo import Reference
from hpcrl.config.data import DataConfig
from hpcrl.config.model import OptimizerConfig, ReferenceConfig
from hpcrl.data.samples import SequenceSample
from hpcrl.dataflow.graph import MFC
from hpcrl.recipes.dpo import DPOConfig, DPOExperiment, DPOModelConfig
from hpcrl.recipes.reward_model import RewardModelConfig, RewardModelExperiment
from hpcrl.workers.host import Work

DATA = DataConfig(train="train.jsonl", batch_size=8)
CALL = MFC("call", "role", "inference", ())


def pairs(counts: Sequence[int], seed: int = 0) -> SequenceSample:
    """A sample for each count, of so many pairs, with margins."""
    draw = np.random.default_rng(seed)

    def text(longest: int) -> np.ndarray:
        return draw.integers(0, CONFIG.vocabulary_size, draw.integers(1, longest), np.int32)

    rows: dict[str, Any] = {
        "prompts": [text(12) for _ in counts],
        "chosen": [[text(20) for _ in range(count)] for count in counts],
        "rejected": [[text(20) for _ in range(count)] for count in counts],
        "margins": [draw.normal(0, 1, count).astype(np.float32) for count in counts],
    }
    return SequenceSample.from_rows([f"{i}@0" for i in range(len(counts))], rows)


def with_reference(batch: SequenceSample, noise: float = 0.5) -> SequenceSample:
    """With what a reference says that differs from the tiny model by noise."""
    made = Reference(native(optimizer=None), dpo_experiment()).inference(Work(1, "ref", 0, batch), CALL).sample
    assert made is not None
    draw = np.random.default_rng(5)
    moved = {
        key: [row + draw.normal(0, noise, len(row)).astype(np.float32) for row in made.rows(key)] for key in made.keys
    }
    return batch.merge(SequenceSample.from_rows(batch.ids, moved))


def dpo_experiment(optimizer: OptimizerConfig | None = None, **dpo: Any) -> DPOExperiment:
    return DPOExperiment(
        data=DATA,
        actor=DPOModelConfig(path="actor", optimizer=optimizer or OptimizerConfig(lr=0.01)),
        reference=ReferenceConfig(path="actor"),
        dpo=DPOConfig(**dpo),
    )


def reward_model_experiment(optimizer: OptimizerConfig | None = None, centring: float = 0.0) -> RewardModelExperiment:
    trained = RewardModelConfig(path="model", optimizer=optimizer or OptimizerConfig(lr=0.01), centring=centring)
    return RewardModelExperiment(data=DATA, reward_model=trained)

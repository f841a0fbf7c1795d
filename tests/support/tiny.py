"""Engines over tiny models that a test trains in milliseconds, and texts for them."""

from pathlib import Path

import numpy as np
import torch
from support.tiny_models import tiny_config, tiny_model

from hpcrl.config.model import OptimizerConfig
from hpcrl.engines.engine import Sequences
from hpcrl.engines.flat import FlatTransformer
from hpcrl.engines.masters import MasterState, ShardedMasters
from hpcrl.engines.model import PackedModel
from hpcrl.engines.native import NativeEngine
from hpcrl.engines.sampler import Sampler
from hpcrl.engines.updater import Updater
from hpcrl.families.config import HeadKind
from hpcrl.models.kernels import Kernels
from hpcrl.parallel.context import Group

CONFIG = tiny_config(tied=True)
ALONE = Group((0,), 0, torch.device("cpu"))
OPTIMIZER = OptimizerConfig(lr=0.01, weight_decay=0.1, grad_clip=1.0)


def native(
    head: HeadKind = "vocabulary",
    dtype: torch.dtype = torch.float64,
    group: Group = ALONE,
    micro_batch_tokens: int = 1000,
    device: str = "cpu",
    optimizer: OptimizerConfig | None = OPTIMIZER,
    steps: int = 10,
    blended: bool = False,
) -> NativeEngine:
    """An engine over a tiny random model; without an optimizer it is frozen, or has masters that are `blended`."""
    config, trainable = CONFIG.with_head(head), optimizer is not None
    transformer = tiny_model(config, dtype=dtype, device=device, trainable=trainable)
    return engine_of(transformer, group, micro_batch_tokens, optimizer, steps, blended)


def engine_of(
    transformer: FlatTransformer,
    group: Group = ALONE,
    micro_batch_tokens: int = 1000,
    optimizer: OptimizerConfig | None = OPTIMIZER,
    steps: int = 10,
    blended: bool = False,
) -> NativeEngine:
    model = PackedModel("actor", transformer)
    memory = transformer.memory
    state = MasterState("actor", memory, ShardedMasters("actor", memory.data, group)) if blended else None
    if optimizer is not None:
        state = Updater("actor", memory, group, optimizer, steps)
    return NativeEngine(
        model,
        Sampler(model, micro_batch_tokens, eos_token_ids=(0,), tokenizer=Path("nowhere")),
        state,
        group=group,
        kernels=Kernels(deterministic=False),
        micro_batch_tokens=micro_batch_tokens,
        tokenizer=Path("nowhere"),
    )


def flat(engine: NativeEngine) -> torch.Tensor:
    """All parameters, as they are now."""
    return engine._model.transformer.memory.data


def random_rows(count: int, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Prompts and responses of many lengths."""
    draw = np.random.default_rng(seed)

    def rows(longest: int) -> list[np.ndarray]:
        return [draw.integers(0, CONFIG.vocabulary_size, draw.integers(1, longest), np.int32) for _ in range(count)]

    return rows(12), rows(20)


def random_sequences(count: int, seed: int = 0) -> Sequences:
    return Sequences.from_rows(*random_rows(count, seed))

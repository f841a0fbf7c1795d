"""Engines over tiny models that a test trains in milliseconds, and texts for them."""

from pathlib import Path

import numpy as np
import torch
from support.tiny_models import tiny_config, tiny_model

from hpcrl.config.model import OptimizerConfig
from hpcrl.engines.engine import Sequences
from hpcrl.engines.inference import EngineContext, InferenceEngine
from hpcrl.engines.native import NativeEngine
from hpcrl.families.config import HeadKind
from hpcrl.parallel.context import Group

CONFIG = tiny_config(tied=True)
ALONE = Group((0,), 0, torch.device("cpu"))
OPTIMIZER = OptimizerConfig(lr=0.01, weight_decay=0.1, grad_clip=1.0)


def site(group: Group, micro_batch_tokens: int) -> EngineContext:
    return EngineContext("actor", Path("nowhere"), group, micro_batch_tokens, eos_token_ids=(0,))


def native(
    head: HeadKind = "vocabulary",
    dtype: torch.dtype = torch.float64,
    group: Group = ALONE,
    micro_batch_tokens: int = 1000,
    device: str = "cpu",
) -> NativeEngine:
    model = tiny_model(CONFIG.with_head(head), dtype=dtype, device=device)
    return NativeEngine(model, site(group, micro_batch_tokens), OPTIMIZER)


def inference(head: HeadKind = "vocabulary", micro_batch_tokens: int = 1000) -> InferenceEngine:
    model = tiny_model(CONFIG.with_head(head), dtype=torch.float64, trainable=False)
    return InferenceEngine(model, site(ALONE, micro_batch_tokens))


def random_rows(count: int, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Prompts and responses of many lengths."""
    draw = np.random.default_rng(seed)

    def rows(longest: int) -> list[np.ndarray]:
        return [draw.integers(0, CONFIG.vocabulary_size, draw.integers(1, longest), np.int32) for _ in range(count)]

    return rows(12), rows(20)


def random_sequences(count: int, seed: int = 0) -> Sequences:
    return Sequences.from_rows(*random_rows(count, seed))

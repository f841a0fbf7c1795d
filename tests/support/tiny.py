"""A model so small that a test trains it in milliseconds, and texts for it."""

from pathlib import Path

import numpy as np
import torch

from hpcrl.backends.engine import Sequences
from hpcrl.backends.inference import InferenceEngine, Site
from hpcrl.backends.native import NativeEngine
from hpcrl.config.model import OptimizerConfig
from hpcrl.models.config import TransformerConfig
from hpcrl.models.init import random_init
from hpcrl.models.transformer import Transformer
from hpcrl.parallel.context import Group
from hpcrl.placement.fields import HeadKind

CONFIG = TransformerConfig(
    family="qwen2",
    vocabulary_size=37,
    hidden_size=16,
    intermediate_size=24,
    blocks=2,
    heads=4,
    kv_heads=2,
    head_dim=4,
    max_positions=64,
    qkv_bias=True,
    tied=True,
    initializer_range=0.3,
)

ALONE = Group((0,), 0, torch.device("cpu"))
OPTIMIZER = OptimizerConfig(lr=0.01, weight_decay=0.1, grad_clip=1.0)


def tiny_model(
    head: HeadKind = "vocabulary", dtype: torch.dtype = torch.float64, trainable: bool = True
) -> Transformer:
    config = CONFIG.with_head(head)
    model = Transformer(config, dtype=dtype, trainable=trainable)
    model.load(random_init(config, seed=1))
    return model


def site(group: Group, micro_batch_tokens: int) -> Site:
    return Site("actor", Path("nowhere"), group, micro_batch_tokens, eos_token_ids=(0,))


def native(
    head: HeadKind = "vocabulary",
    dtype: torch.dtype = torch.float64,
    group: Group = ALONE,
    micro_batch_tokens: int = 1000,
) -> NativeEngine:
    return NativeEngine(tiny_model(head, dtype), site(group, micro_batch_tokens), OPTIMIZER)


def inference(head: HeadKind = "vocabulary", micro_batch_tokens: int = 1000) -> InferenceEngine:
    return InferenceEngine(tiny_model(head, trainable=False), site(ALONE, micro_batch_tokens))


def random_rows(count: int, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Prompts and responses of many lengths."""
    draw = np.random.default_rng(seed)

    def rows(longest: int) -> list[np.ndarray]:
        return [draw.integers(0, CONFIG.vocabulary_size, draw.integers(1, longest), np.int32) for _ in range(count)]

    return rows(12), rows(20)


def random_sequences(count: int, seed: int = 0) -> Sequences:
    return Sequences.from_rows(*random_rows(count, seed))

"""Engines over tiny models that a test trains in milliseconds, and texts for them."""

from pathlib import Path

import numpy as np
import torch
from support.tiny_models import tiny_config, tiny_model

from hpcrl.config.model import Offload, OptimizerConfig
from hpcrl.engines.adamw import ShardedAdamW
from hpcrl.engines.composed import NO_ROUTER_LOSS, ComposedEngine
from hpcrl.engines.engine import Sequences
from hpcrl.engines.fsdp import RowParameters, RowTransformer
from hpcrl.engines.masters import MasterState, ShardedMasters
from hpcrl.engines.memory import HeldModel
from hpcrl.engines.model import PackedModel
from hpcrl.engines.sampler import Sampler
from hpcrl.engines.updater import Updater
from hpcrl.families.config import DecoderConfig, HeadKind
from hpcrl.models.init import random_init
from hpcrl.models.kernels import Kernels
from hpcrl.models.lessons import RouterLoss
from hpcrl.parallel.group import Group
from hpcrl.parallel.replica import ReplicaGroups, over_data
from hpcrl.workers.meter import Meter

CONFIG = tiny_config(tied=True)
ALONE = Group((0,), 0, torch.device("cpu"))
WITH_NOBODY = over_data(ALONE)
OPTIMIZER = OptimizerConfig(lr=0.01, weight_decay=0.1, grad_clip=1.0)


def native(
    head: HeadKind = "vocabulary",
    dtype: torch.dtype = torch.float64,
    group: Group | ReplicaGroups = ALONE,
    micro_batch_tokens: int = 1000,
    device: str = "cpu",
    optimizer: OptimizerConfig | None = OPTIMIZER,
    steps: int = 10,
    blended: bool = False,
    config: DecoderConfig = CONFIG,
    router_loss: RouterLoss = NO_ROUTER_LOSS,
    offload: Offload = "none",
    meter: Meter | None = None,
) -> ComposedEngine:
    """An engine over a tiny random model; without an optimizer it is frozen, or has masters that are `blended`."""
    groups = over_data(group) if isinstance(group, Group) else group
    transformer = tiny_model(
        config.with_head(head),
        dtype=dtype,
        device=device,
        trainable=optimizer is not None,
        cut=groups.cut,
        tensor=groups.tp,
        offloaded=offload != "none",
    )
    return engine_of(transformer, groups, micro_batch_tokens, optimizer, steps, blended, router_loss, meter=meter)


def fsdp(
    head: HeadKind,
    dtype: torch.dtype,
    group: Group | ReplicaGroups,
    micro_batch_tokens: int = 1000,
    optimizer: OptimizerConfig | None = OPTIMIZER,
    steps: int = 10,
    blended: bool = False,
    config: DecoderConfig = CONFIG,
    router_loss: RouterLoss = NO_ROUTER_LOSS,
    offload: Offload = "none",
) -> ComposedEngine:
    """As `native`, of the same model, which all ranks of the group hold together."""
    trained, groups = optimizer is not None, over_data(group) if isinstance(group, Group) else group
    model, changes = config.with_head(head), trained or blended
    rows = RowParameters(model, groups.dp, dtype, torch.device("cpu"), trained, changes, offload)
    transformer = RowTransformer(rows)
    # Rounded first, as masters are made of a tiny model that is there.
    transformer.load((name, tensor.to(dtype)) for name, tensor in random_init(model, 3))
    return engine_of(transformer, groups, micro_batch_tokens, optimizer, steps, blended, router_loss)


def engine_of(
    transformer: HeldModel,
    groups: ReplicaGroups = WITH_NOBODY,
    micro_batch_tokens: int = 1000,
    optimizer: OptimizerConfig | None = OPTIMIZER,
    steps: int = 10,
    blended: bool = False,
    router_loss: RouterLoss = NO_ROUTER_LOSS,
    made: type[ShardedAdamW] = ShardedAdamW,
    meter: Meter | None = None,
) -> ComposedEngine:
    meter = meter or Meter()
    model = PackedModel("actor", transformer)
    memory = transformer.memory
    masters = ShardedMasters("actor", memory.slice(groups.dp), groups)
    state = MasterState("actor", memory, masters) if blended else None
    if optimizer is not None:
        state = Updater("actor", memory, groups, optimizer, steps, made)
    return ComposedEngine(
        model,
        Sampler(model, micro_batch_tokens, eos_token_ids=(0,), tokenizer=Path("nowhere"), pp=groups.pp, meter=meter),
        state,
        groups=groups,
        kernels=Kernels(deterministic=False),
        micro_batch_tokens=micro_batch_tokens,
        router_loss=router_loss,
        meter=meter,
    )


def flat(engine: ComposedEngine) -> torch.Tensor:
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

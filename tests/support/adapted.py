"""Engines over tiny models with adapters, and PEFT's own of the same numbers."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from support.layouts import OPTIMIZER
from support.tiny import ALONE, engine_of
from torch import Tensor

from hpcrl.config.model import OptimizerConfig
from hpcrl.engines.adapters import adapted_in_flat_buffers
from hpcrl.engines.composed import ComposedEngine
from hpcrl.engines.fsdp import adapted_in_rows
from hpcrl.families.config import Adapters, DecoderConfig
from hpcrl.families.reader import parameters_of
from hpcrl.models.init import initial, random_init
from hpcrl.models.parts import parts_of
from hpcrl.parallel.group import Group
from hpcrl.parallel.replica import ReplicaGroups, over_data
from hpcrl.placement.shards import WHOLE, Cut

ADAPTERS = Adapters(rank=4, alpha=12.0)


def numbers_of(config: DecoderConfig, cut: Cut = WHOLE, zero: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Of a tiny model and of its adapters; the second ones are random, too, if not `zero`."""
    yield from parts_of(config.base, cut, random_init(config.base, 3))
    for parameter in parameters_of(config):
        if parameter.layer <= config.blocks:
            whole = initial(config, parameter, 5)
            if not zero and parameter.name.endswith("lora_B"):
                whole = initial(config, replace(parameter, name=parameter.name + ".random"), 5)
            yield from parts_of(config, cut, [(parameter.name, whole)])


def adapted(
    config: DecoderConfig,
    dtype: torch.dtype = torch.float64,
    group: Group | ReplicaGroups = ALONE,
    micro_batch_tokens: int = 1000,
    optimizer: OptimizerConfig = OPTIMIZER,
    adapters: Adapters = ADAPTERS,
    zero: bool = False,
    sharded: bool = False,
    **options: Any,
) -> ComposedEngine:
    """An engine over a tiny model with adapters; `sharded` by FSDP, or in flat buffers."""
    groups = over_data(group) if isinstance(group, Group) else group
    with_some = replace(config, adapters=adapters)
    made = adapted_in_rows if sharded else adapted_in_flat_buffers
    transformer = made(with_some, groups, dtype, torch.device("cpu"))
    engine = engine_of(transformer, groups, micro_batch_tokens, optimizer, **options)
    engine.fill((name, tensor.to(dtype)) for name, tensor in numbers_of(with_some, groups.cut, zero))
    return engine


def trained_of(engine: ComposedEngine) -> dict[str, Tensor]:
    """What is trained, by name."""
    memory: Any = engine._model.transformer.memory
    return {name: view.detach().clone() for name, view in memory.trained.views.items()}


def folder_of(root: Path, name: str) -> Path:
    """A new one."""
    (root / name).mkdir(parents=True)
    return root / name

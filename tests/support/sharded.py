"""What is compared of a sharded model with one in flat buffers. Ranks of a pool are told by pickle what to make."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from support.pool import everyone
from support.tiny_models import CONFIGS, tiny_config

from hpcrl.config.model import Offload, OptimizerConfig
from hpcrl.engines.composed import ComposedEngine
from hpcrl.engines.fsdp import RowTransformer
from hpcrl.models.lessons import RouterLoss

OPTIMIZER = OptimizerConfig(lr=0.02, weight_decay=0.1, grad_clip=0.0)
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """What an engine is made of."""

    head: str = "vocabulary"
    dtype: str = "fp32"
    tied: bool = True
    recompute: bool = False
    clip: float = 0.0
    family: str = ""
    aux: float = 0.0
    reduces_each: bool = False
    offload: Offload = "none"

    def made(self, maker: Callable[..., ComposedEngine], context: Any) -> ComposedEngine:
        engine = maker(
            self.head,
            DTYPES[self.dtype],
            everyone(context),
            micro_batch_tokens=24,
            optimizer=replace(OPTIMIZER, grad_clip=self.clip),
            config=CONFIGS[self.family]() if self.family else tiny_config(tied=self.tied),
            router_loss=RouterLoss(aux=self.aux, z=self.aux / 2),
            **({} if self.offload == "none" else {"offload": self.offload}),
        )
        engine._model.transformer.recompute = self.recompute
        if self.reduces_each and isinstance(engine._model.transformer, RowTransformer):
            engine._model.transformer.reduces_each = True
        return engine

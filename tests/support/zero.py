"""Engines of DeepSpeed over tiny models."""

from functools import partial
from typing import Any

import torch
from support.tiny import CONFIG, engine_of, native

from hpcrl.config.model import Offload, OptimizerConfig
from hpcrl.engines.deepspeed import ZeroAdamW, ZeroParameters, ZeroTransformer
from hpcrl.engines.zero3 import Zero3Parameters, Zero3Transformer
from hpcrl.models.init import random_init
from hpcrl.parallel.group import Group
from hpcrl.parallel.replica import over_data


def zero(
    stage: int,
    head: Any = "vocabulary",
    dtype: torch.dtype = torch.float32,
    group: Any = None,
    micro_batch_tokens: int = 1000,
    optimizer: OptimizerConfig | None = None,
    steps: int = 10,
    config: Any = CONFIG,
    offload: Offload = "none",
    **options: Any,
) -> Any:
    """As `native`, of the same model. Stages 1 and 2 hold one only that is trained."""
    groups = over_data(group) if isinstance(group, Group) else group
    if groups.dp.size == 1 or (optimizer is None and stage < 3):
        return native(
            head,
            dtype,
            group,
            micro_batch_tokens,
            optimizer=optimizer,
            steps=steps,
            config=config,
            offload=offload,
            **options,
        )
    model = config.with_head(head)
    transformer: Zero3Transformer | ZeroTransformer
    if stage == 3:
        parted = Zero3Parameters(model, groups.dp, dtype, torch.device("cpu"), optimizer is not None, offload)
        transformer = Zero3Transformer(parted)
    else:
        memory = ZeroParameters(
            model, groups.dp, dtype, torch.device("cpu"), each=stage == 2, offloaded=offload != "none"
        )
        transformer = ZeroTransformer(model, memory)
    # Rounded first, as masters are made of a tiny model that is there.
    transformer.load((name, tensor.to(dtype)) for name, tensor in random_init(model, 3))
    return engine_of(transformer, groups, micro_batch_tokens, optimizer, steps, made=ZeroAdamW, **options)


zero1, zero2, zero3 = partial(zero, 1), partial(zero, 2), partial(zero, 3)
MAKERS = {"zero1": zero1, "zero2": zero2, "zero3": zero3}

"""Engines of one folder's model in both spaces. Ranks of a pool are told by pickle what to make."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from support.foreign_models import ZERO
from support.guests import WHOLE, made, trained
from support.layouts import groups_in, objective
from support.sharded import Case
from support.tiny import engine_of

from hpcrl.durable.shards import Shard
from hpcrl.durable.translated import translated
from hpcrl.engines.adamw import ShardedAdamW
from hpcrl.engines.composed import ComposedEngine
from hpcrl.engines.deepspeed import ZeroAdamW, ZeroForeign, ZeroParameters
from hpcrl.engines.foreign import FlatForeign
from hpcrl.engines.fsdp import RowForeign, RowParameters
from hpcrl.engines.zero3 import Zero3Foreign, Zero3Parameters
from hpcrl.families.spaces import KINDS, Translation
from hpcrl.models.pretrained import load_pretrained, read_config
from hpcrl.placement.layouts import Layout


def transformers_engine(
    folder: Path,
    backend: str,
    head: Any,
    dtype: torch.dtype,
    groups: Any,
    micro_batch_tokens: int,
    optimizer: Any,
    config: Any = None,
) -> ComposedEngine:
    """A model of transformers, which is trained; `config` is another space's."""
    model, parameters = load_pretrained(folder, kind="transformers", head=head, seed=1, trained=True)
    device = torch.device("cpu")
    foreign: FlatForeign | RowForeign | Zero3Foreign
    if backend == "fsdp" and groups.dp.size > 1:
        foreign = RowForeign(RowParameters(model, groups.dp, dtype, device, trainable=True, changes=True))
    elif backend == "zero3":
        foreign = Zero3Foreign(Zero3Parameters(model, groups.dp, dtype, device, trainable=True))
    elif backend in ZERO:
        memory = ZeroParameters(model, groups.dp, dtype, device, each=backend == "zero2")
        foreign = ZeroForeign(model, memory, groups.dp)
    else:
        foreign = FlatForeign(model, dp=groups.dp, dtype=dtype, device=device)
    foreign.load((name, tensor.to(dtype)) for name, tensor in parameters)
    optimizers = ZeroAdamW if backend in ZERO else ShardedAdamW
    return engine_of(foreign, groups, micro_batch_tokens, optimizer, made=optimizers)


def by_transformers(folder: Path, backend: str) -> Callable[..., ComposedEngine]:
    return partial(transformers_engine, folder, backend)


def taken(
    context: Any,
    folder: Path,
    maker: Callable[..., ComposedEngine],
    case: Case,
    layout: Layout,
    saved: Sequence[Shard],
    config: Any = None,
) -> dict[str, Any] | None:
    """What an engine is with the shards of another, loaded as the host does it, what it saves of them, and the loss of
    one more update; `of_shards` is the digest of what it was loaded from."""
    groups = groups_in(context, layout)
    if groups is None:
        return None
    engine = made(maker, case, groups, config)
    found = {
        "exact": engine.load(in_space(folder, case, saved, engine.space)),
        "digest": engine.digest(),
        "of_shards": engine.digest_of(saved),
        "parameters": engine.parameters_digest(),
        "saved": engine.snapshot(),
    }
    return found | {"loss": trained(engine, [(WHOLE[0], objective(case.head == "vocabulary"))])[0].loss}


def in_space(folder: Path, case: Case, saved: Sequence[Shard], space: Any) -> Sequence[Shard]:
    of = saved[0].state["space"]
    if of == space:
        return saved
    source, target = (read_config(folder, kind=KINDS[each]).with_head(case.head) for each in (of, space))  # type: ignore[arg-type]
    return translated(saved, Translation(source, target))

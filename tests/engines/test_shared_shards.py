"""Checkpoints that the ranks of a replica read together, beside ranks that each read what they have."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch
from support.pool import RankPool, gloo_pool
from support.reading import rchar
from support.tiny import native
from support.tiny_models import tiny_config

from hpcrl.durable.checkpoints import write_shard
from hpcrl.durable.files import Files
from hpcrl.durable.shards import open_shard, span_state
from hpcrl.engines import shared_shards
from hpcrl.engines.composed import ComposedEngine
from hpcrl.parallel.context import ParallelContext
from hpcrl.parallel.replica import groups_of, sharing
from hpcrl.placement.layouts import parse_layout
from hpcrl.placement.shared_shards import shared_reading

CONFIG = tiny_config(blocks=4, tied=True, hidden_size=64, intermediate_size=96, head_dim=16, vocabulary_size=509)


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with gloo_pool(4) as ranks:
        yield ranks


def engine_of(context: ParallelContext, layout: str, dtype: torch.dtype) -> ComposedEngine | None:
    placed = parse_layout(layout)
    ranks = tuple(range(placed.size))
    context.form(sharing(placed, ranks))
    if context.rank not in ranks:
        return None
    return native(dtype=dtype, group=groups_of(context, placed, ranks), config=CONFIG)


def parts(engine: ComposedEngine) -> dict[str, torch.Tensor]:
    assert engine._state is not None
    return dict(engine._state._masters.parts)


def saved(context: ParallelContext, folder: Path, layout: str, dtype: torch.dtype) -> None:
    """A shard of each rank, of numbers that are all different."""
    if (engine := engine_of(context, layout, dtype)) is None:
        return
    for number, tensor in enumerate(parts(engine).values()):
        tensor.copy_(torch.rand(len(tensor), generator=torch.Generator().manual_seed(10 * context.rank + number)))
    shard = engine.snapshot()
    state = {"spans": span_state(shard.spans), **shard.state}
    write_shard(Files(folder), folder, "actor", context.rank, shard.arrays, state)


def loaded(
    context: ParallelContext, folder: Path, layout: str, dtype: torch.dtype, numel: int
) -> tuple[int, bool, bool] | None:
    """How much this rank has read; whether it has what it would have read by itself, to the bit; whether that is
    exactly what was saved."""
    if (engine := engine_of(context, layout, dtype)) is None:
        return None
    paths = sorted(folder.glob("*.safetensors"))
    engine.load([open_shard(path) for path in paths])
    alone = {name: tensor.clone() for name, tensor in parts(engine).items()}, engine.digest()
    engine.load(engine.shared([open_shard(path) for path in paths]))  # all code is there
    for tensor in parts(engine).values():
        tensor.fill_(-1.0)
    shards = [open_shard(path) for path in paths]
    with mock.patch.object(shared_shards, "shared_reading", partial(shared_reading, numel=numel)):
        before = rchar()
        shared = engine.shared(shards)
        exact = engine.load(shared)
        read = rchar() - before
    where = [slice(span.offset, span.stop) for span in engine._saved._masters.spans if span.place.rows == 1]
    same = all(torch.equal(tensor[at], alone[0][name][at]) for name, tensor in parts(engine).items() for at in where)
    same &= engine.digest() == alone[1] and (exact or shared.digest() == engine.digest_of(shards) != alone[1])
    return read, same, exact


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("d1", "d1"),
        ("d2", "d2"),
        ("d4", "d2"),
        ("d1", "d4"),
        ("d2", "t2"),
        ("t2", "t2"),
        ("t2", "p2"),
        ("p2", "d2t2"),
        ("d2t2", "t2p2"),
    ],
)
@pytest.mark.parametrize("numel", [1 << 20, 1000], ids=["as it is", "in turns"])
def test_all_ranks_together_read_each_byte_once_and_have_the_same_bits(pool, tmp_path, before, after, numel):
    pool.run(saved, tmp_path, before, torch.float32)
    found = [it for it in pool.run(loaded, tmp_path, after, torch.float32, numel) if it is not None]
    size = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert all(same and exact for _, same, exact in found)
    assert 0.9 * size <= sum(read for read, *_ in found) <= 1.05 * size


def test_what_is_rounded_as_it_arrives_is_summed_up_as_it_is_read(pool, tmp_path):
    pool.run(saved, tmp_path, "d2", torch.float64)
    found = [it for it in pool.run(loaded, tmp_path, "d2t2", torch.float32, 1000) if it is not None]
    assert all(same and not exact for _, same, exact in found)
    size = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert sum(read for read, *_ in found) <= 1.05 * size

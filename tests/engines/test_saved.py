"""What engines in one layout have learnt and saved, engines in another load and learn on from."""

import itertools
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import pytest
import torch
from support.covering import covering
from support.layouts import OPTIMIZER, ROWS, columns_of, groups_in, objective
from support.pool import gloo_pool
from support.tiny import flat, native
from support.tiny_models import tiny_config

from hpcrl.engines.composed import ComposedEngine
from hpcrl.engines.engine import Update
from hpcrl.engines.shard import CopiedShard
from hpcrl.placement.layouts import Layout, parse_layout

CONFIG = tiny_config(blocks=4, kv_heads=1, vocabulary_size=61, tied=True)
DTYPES = {"fp64": torch.float64, "bf16": torch.bfloat16}
CHANGES = [("t2p2", "d2t2"), ("d2t2", "p3"), ("t4", "d4"), ("d2p2", "t2")]


@pytest.fixture(scope="module")
def pool():
    with gloo_pool(4) as ranks:
        yield ranks


def learn(engine: ComposedEngine, rows: Sequence[int], step: int) -> None:
    engine.train_batch(ROWS.select(rows), columns_of(rows), objective(True), Update(step, 0, 1))


def state_of(engine: ComposedEngine) -> dict[str, Any]:
    return {
        "saved": engine.snapshot(),
        "digests": (engine.digest(), engine.parameters_digest()),
        "buffer": flat(engine).clone(),
    }


def on_rank(context: Any, layout: Layout, dtype: str, shards: Sequence[CopiedShard]) -> list[dict[str, Any]] | None:
    """What a rank of a layout has after a first update, or after loading instead; then after one more."""
    groups = groups_in(context, layout)
    if groups is None:
        return None
    engine = native(group=groups, dtype=DTYPES[dtype], optimizer=OPTIMIZER, config=CONFIG, micro_batch_tokens=40)
    rows = list(range(groups.dp.index, len(ROWS), layout.dp))
    if shards:
        assert engine.load(shards)
    else:
        learn(engine, rows, 1)
    first = state_of(engine)
    learn(engine, rows, 2)
    return [first, state_of(engine)]


@pytest.mark.parametrize(
    ("change", "dtype"), covering(itertools.product(CHANGES, DTYPES), itemgetter(0), itemgetter(1)), ids=str
)
def test_a_checkpoint_of_any_layout_goes_on_in_any_other(pool, change, dtype):
    source, target = map(parse_layout, change)
    learnt = pool.run(on_rank, source, dtype, [])[: source.size]
    saved = [first["saved"] for first, _ in learnt]

    again = pool.run(on_rank, source, dtype, saved)[: source.size]
    for (first, second), (loaded, on) in zip(learnt, again, strict=True):
        # What a rank holds and another owns is in no file of its own, and has the same bits.
        assert torch.equal(loaded["buffer"], first["buffer"]) and torch.equal(on["buffer"], second["buffer"])
        assert (loaded["digests"], on["digests"]) == (first["digests"], second["digests"])

    elsewhere = pool.run(on_rank, target, dtype, saved)[: target.size]
    assert {loaded["digests"] for loaded, _ in elsewhere} == {learnt[0][0]["digests"]}

    alone = native(dtype=DTYPES[dtype], optimizer=OPTIMIZER, config=CONFIG, micro_batch_tokens=40)
    alone.load([loaded["saved"] for loaded, _ in elsewhere])
    assert (alone.digest(), alone.parameters_digest()) == learnt[0][0]["digests"]
    if dtype == "fp64":
        learn(alone, range(len(ROWS)), 2)
        other_way = native(dtype=torch.float64, optimizer=OPTIMIZER, config=CONFIG)
        other_way.load([on["saved"] for _, on in elsewhere])
        torch.testing.assert_close(flat(other_way), flat(alone), rtol=0, atol=1e-9)

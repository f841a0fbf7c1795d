"""Masters without an optimizer: what a blend makes of them, on one rank and on two, and their state."""

import pytest
import torch
from support.pool import everyone, gloo_pool
from support.tiny import CONFIG, native
from support.tiny_models import tiny_config, tiny_model

from hpcrl.engines.masters import MasterState, ShardedMasters
from hpcrl.engines.slices import FlatSlice
from hpcrl.errors import InternalError
from hpcrl.families.places import whole
from hpcrl.parallel.group import Group
from hpcrl.parallel.replica import over_data

TOTAL = 101
SPANS = [whole("one", 60), whole("other", 41).moved(60)]
ALONE = Group((0,), 0, torch.device("cpu"))
DECAYS = (0.9, 0.0, 0.75)


@pytest.fixture(scope="module")
def pool():
    with gloo_pool(2) as ranks:
        yield ranks


def masters_of(role, flat, group=ALONE):
    return ShardedMasters(role, FlatSlice(flat, SPANS, group), over_data(group))


def weights(seed, dtype):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(TOTAL, generator=draw, dtype=torch.float64).to(dtype)


def blended(dtype, group=ALONE):
    """The flat buffer, and its masters, after some blends with others that change."""
    flat = weights(0, dtype)
    masters = masters_of("reference", flat, group)
    for number, decay in enumerate(DECAYS):
        masters.blend(masters_of("actor", weights(1 + number, dtype), group).master_S, decay)
    return flat, masters


def two_ranks(rank, dtype):
    flat, masters = blended(dtype, everyone(rank))
    return flat, masters.snapshot(), masters.digest()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_blend_is_a_weighted_mean_in_at_least_fp32(dtype):
    flat, masters = blended(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    expected = weights(0, dtype).to(wide)
    for number, decay in enumerate(DECAYS):
        expected = decay * expected + (1.0 - decay) * weights(1 + number, dtype).to(wide)
    torch.testing.assert_close(masters.master_S, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(flat, masters.master_S.to(dtype))
    assert masters.updates == len(DECAYS)


def test_many_small_steps_of_a_bf16_model_are_not_lost():
    flat = torch.ones(TOTAL, dtype=torch.bfloat16)
    masters = masters_of("reference", flat)
    source = masters_of("actor", torch.full((TOTAL,), 2.0, dtype=torch.bfloat16))
    for _ in range(1000):
        masters.blend(source.master_S, 0.999)
    assert float(flat[0]) == pytest.approx(2 - 0.999**1000, rel=1e-2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_two_ranks_have_the_bits_of_one(pool, dtype):
    flat, masters = blended(dtype)
    results = pool.run(two_ranks, dtype)
    assert all(torch.equal(both, flat) and digest == masters.digest() for both, _, digest in results)
    merged = torch.zeros(TOTAL, dtype=dtype)
    alone = masters_of("reference", merged)
    alone.load([shard for _, shard, _ in results])
    assert torch.equal(merged, flat) and alone.digest() == masters.digest()


def test_a_blended_engine_is_saved_and_goes_on_with_the_same_bits():
    source = native(dtype=torch.bfloat16)
    one, other = (native(dtype=torch.bfloat16, optimizer=None, blended=True) for _ in range(2))
    one.fill((name, view.detach() * 0.5) for name, view in tiny_model(CONFIG).memory.views.items())
    one.blend(source.masters()[1], 0.9)
    other.load([one.snapshot()])
    assert other.digest() == one.digest()
    for engine in (one, other):
        engine.blend(source.masters()[1], 0.9)
    assert other.digest() == one.digest()
    one.release({"parameters": "host", "optimizer": "host"})
    assert other.digest() == one.digest()


def test_models_of_other_shapes_are_not_blended():
    models = [("reference", tiny_model(CONFIG)), ("actor", tiny_model(tiny_config(tied=False)))]
    one, other = (
        MasterState(role, it.memory, ShardedMasters(role, it.memory.slice(ALONE), over_data(ALONE)))
        for role, it in models
    )
    with pytest.raises(InternalError, match=r"reference has \d+ masters here, and \d+ are blended in"):
        one.blend(other.masters, 0.5)

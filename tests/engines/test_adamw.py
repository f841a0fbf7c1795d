"""Sharded AdamW against torch's on one process, and its state through any number of shards."""

import math

import pytest
import torch
from support.pool import everyone, gloo_pool

from hpcrl.config.model import OptimizerConfig
from hpcrl.engines.adamw import ShardedAdamW
from hpcrl.engines.slices import FlatSlice
from hpcrl.errors import InternalError
from hpcrl.families.places import whole
from hpcrl.parallel.group import Group
from hpcrl.parallel.replica import over_data

TOTAL = 101
SPANS = [whole("one", 60), whole("other", 41).moved(60)]
UNDECAYED = [(0, 7), (40, 20), (99, 2)]
CONFIG = OptimizerConfig(lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, grad_clip=1.0)
ALONE = Group((0,), 0, torch.device("cpu"))


@pytest.fixture(scope="module")
def pool():
    with gloo_pool(2) as ranks:
        yield ranks


def parameters(dtype=torch.float64):
    return torch.randn(TOTAL, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def gradient(update, rank=0, dtype=torch.float64):
    """Small ones as well as ones to be clipped."""
    draw = torch.Generator().manual_seed(100 * update + rank)
    return torch.randn(TOTAL, generator=draw, dtype=torch.float64).to(dtype) * 0.03 * (1 + update)


def optimizer(flat, group=ALONE, config=CONFIG):
    return ShardedAdamW("actor", FlatSlice(flat, SPANS, group, UNDECAYED), over_data(group), config)


def trained(flat, updates, group=ALONE):
    adamw = optimizer(flat, group)
    for update in range(updates):
        adamw.step(gradient(update, dtype=torch.promote_types(flat.dtype, torch.float32)), 0.1 / (1 + update))
    return adamw


def test_updates_equal_torch_adamw_with_clipping_and_partial_weight_decay():
    flat = parameters()
    undecayed = torch.zeros(TOTAL, dtype=torch.bool)
    for offset, length in UNDECAYED:
        undecayed[offset : offset + length] = True
    plain, decayed = flat[undecayed].clone().requires_grad_(), flat[~undecayed].clone().requires_grad_()
    groups = [{"params": [plain], "weight_decay": 0.0}, {"params": [decayed], "weight_decay": 0.1}]
    reference = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    adamw = optimizer(flat)
    for update in range(5):
        whole = gradient(update)
        plain.grad, decayed.grad = whole[undecayed].clone(), whole[~undecayed].clone()
        norm = float(whole.norm())
        for parameter in (plain, decayed):
            parameter.grad *= min(1.0, 1.0 / norm)
        for group in reference.param_groups:
            group["lr"] = 0.1 / (1 + update)
        reference.step()
        assert adamw.step(whole, 0.1 / (1 + update)) == pytest.approx(norm, rel=1e-12)
    torch.testing.assert_close(flat[undecayed], plain.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(flat[~undecayed], decayed.detach(), rtol=1e-12, atol=1e-12)


def test_without_weight_decay_intervals_stay_where_their_gradient_is_zero():
    flat = parameters()
    before = flat.clone()
    optimizer(flat).step(torch.zeros(TOTAL, dtype=torch.float64), 0.1)
    assert torch.equal(flat[40:60], before[40:60])
    torch.testing.assert_close(flat[10:40], before[10:40] * (1 - 0.1 * 0.1))


def test_a_bound_of_zero_does_not_clip():
    free, bound = parameters(), parameters()
    optimizer(free, config=OptimizerConfig(grad_clip=0.0)).step(gradient(9), 0.1)
    optimizer(bound, config=OptimizerConfig(grad_clip=1e9)).step(gradient(9), 0.1)
    assert torch.equal(free, bound)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(bad):
    flat = parameters()
    adamw = trained(flat, 2)
    before, digest = flat.clone(), adamw.digest()
    broken = gradient(3)
    broken[5] = bad
    assert not math.isfinite(adamw.step(broken, 0.1))
    assert torch.equal(flat, before)
    assert adamw.digest() == digest


def two_ranks(context, dtype):
    flat = parameters(dtype)
    adamw = optimizer(flat, everyone(context))
    wide = torch.promote_types(dtype, torch.float32)
    norms = []
    for update in range(5):
        half = gradient(update, dtype=wide) * (0.25 if context.rank == 0 else 0.75)
        norms.append(adamw.step(half, 0.1))
    return flat, adamw.digest(), norms, adamw.snapshot()


def test_two_ranks_equal_one_in_float64(pool):
    alone = parameters()
    adamw = optimizer(alone)
    norms = [adamw.step(gradient(update), 0.1) for update in range(5)]
    first, second = pool.run(two_ranks, torch.float64)
    torch.testing.assert_close(first[0], alone, rtol=1e-9, atol=1e-12)
    assert first[2] == pytest.approx(norms, rel=1e-12)
    assert torch.equal(first[0], second[0])
    assert first[1] == second[1]


def test_bf16_parameters_follow_fp32_masters(pool):
    first, second = pool.run(two_ranks, torch.bfloat16)
    masters = torch.cat([torch.from_numpy(shard.arrays["master"]) for shard in (first[3], second[3])])
    assert masters.dtype == torch.float32
    assert torch.equal(first[0], masters.bfloat16())
    assert not torch.equal(masters, masters.bfloat16().float())


def continued(context, shards):
    flat = torch.zeros(TOTAL, dtype=torch.float64)
    adamw = optimizer(flat, everyone(context))
    adamw.load(iter(shards))
    assert sum(span.place.numel for span in adamw.snapshot().spans) in (50, 51)
    return flat, adamw.digest()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_saved_state_continues_bit_for_bit(dtype):
    flat, other = parameters(dtype), torch.zeros(TOTAL, dtype=dtype)
    adamw, loaded = trained(flat, 3), optimizer(other)
    loaded.load([adamw.snapshot()])
    assert torch.equal(other, flat)
    for each in (adamw, loaded):
        each.step(gradient(7, dtype=torch.promote_types(dtype, torch.float32)), 0.1)
    assert torch.equal(other, flat)
    assert loaded.digest() == adamw.digest()


def test_state_moves_between_one_and_two_ranks(pool):
    flat = parameters()
    adamw = trained(flat, 3)
    loaded = pool.run(continued, [adamw.snapshot()])
    shards = [state for *_, state in pool.run(two_ranks, torch.float64)]
    both, digests = zip(*loaded, strict=True)
    assert torch.equal(both[0], flat)
    assert torch.equal(both[1], flat)
    assert set(digests) == {adamw.digest()}
    merged = torch.zeros(TOTAL, dtype=torch.float64)
    alone = optimizer(merged)
    alone.load(shards)
    again = pool.run(continued, [alone.snapshot()])
    assert torch.equal(merged, again[0][0])
    assert again[1][1] == alone.digest()


def test_a_state_is_a_copy():
    flat = parameters()
    adamw = trained(flat, 1)
    arrays = adamw.snapshot().arrays
    before = arrays["master"].copy()
    adamw.step(gradient(5), 0.1)
    assert (arrays["master"] == before).all()


def test_missing_shards_and_other_models_are_refused(pool):
    shards = [state for *_, state in pool.run(two_ranks, torch.float64)]
    with pytest.raises(InternalError, match="hold 51 of the 101 elements"):
        optimizer(torch.zeros(TOTAL, dtype=torch.float64)).load(shards[:1])
    other = [whole("third", 3)]
    with pytest.raises(InternalError, match="hold 0 of the 3 elements"):
        ShardedAdamW("actor", FlatSlice(torch.zeros(3), other, ALONE), over_data(ALONE), CONFIG).load(shards)

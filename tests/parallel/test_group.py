"""Collectives that add up in rank order, against a sum in one process, and messages."""

import warnings

import pytest
import torch
from support.pool import everyone, gloo_pool

from hpcrl.parallel.group import Group
from hpcrl.placement.buffers import shard_bounds


@pytest.fixture(scope="module")
def pool():
    with gloo_pool(3) as ranks:
        yield ranks


@pytest.mark.parametrize(("total", "ranks"), [(10, 3), (9, 3), (2, 3), (1, 4), (0, 2), (7, 1)])
def test_slices_cover_the_buffer_without_overlap(total, ranks):
    covered = [i for offset, length in shard_bounds(total, ranks) for i in range(offset, offset + length)]
    assert covered == list(range(total))
    assert len(shard_bounds(total, ranks)) == ranks


def gradient(rank, total, dtype):
    return torch.randn(total, generator=torch.Generator().manual_seed(rank)).to(dtype)


def reduce_and_gather(context, total, dtype, piece_bytes):
    group = Group(range(3), context.rank, context.device, piece_bytes=piece_bytes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own = group.reduce_scatter(gradient(context.rank, total, dtype))
        everything = torch.full((total,), float("nan"), dtype=dtype)
        group.all_gather(own, everything)
    return everything


@pytest.mark.parametrize("piece_bytes", [12, 2**20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("total", [1000, 1, 2, 100])
def test_reduced_slices_are_the_sum_in_rank_order_to_the_last_bit(pool, total, dtype, piece_bytes):
    expected = gradient(0, total, dtype) + gradient(1, total, dtype) + gradient(2, total, dtype)
    for got in pool.run(reduce_and_gather, total, dtype, piece_bytes):
        assert torch.equal(got, expected)


def totals(context):
    ranks = torch.tensor([context.rank + 1, 0.1], dtype=torch.float64)
    group = everyone(context)
    return group.total(ranks).tolist(), group.total(torch.tensor([2**62])).tolist()


def test_statistics_are_totalled_in_float64_and_checksums_wrap_around(pool):
    for statistics, checksum in pool.run(totals):
        assert statistics == [6.0, 0.1 + 0.1 + 0.1]
        assert checksum == [3 * 2**62 - 2**64]


def test_a_rank_that_raises_is_named(pool):
    with pytest.raises(AssertionError, match="no such luck"):
        pool.run(raise_on_rank_1)
    assert len(pool.run(totals)) == 3


def raise_on_rank_1(context):
    if context.rank == 1:
        raise ValueError("no such luck")


def test_a_rank_outside_a_group_cannot_hold_it():
    with pytest.raises(ValueError, match="not in tuple"):
        Group((0, 1), 2, torch.device("cpu"))


def rows_of(rank, count, dtype):
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(rank)).to(dtype)


def reduce_and_gather_rows(context, count, dtype, piece_bytes):
    group = Group(range(3), context.rank, context.device, piece_bytes=piece_bytes)
    return group.all_gather_rows(group.reduce_scatter_rows(rows_of(context.rank, count, dtype)))


@pytest.mark.parametrize("piece_bytes", [1, 2**20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("count", [0, 3, 30])
def test_reduced_rows_are_the_sum_in_rank_order_and_bf16_is_rounded_once(pool, count, dtype, piece_bytes):
    a, b, c = (rows_of(rank, count, dtype).to(torch.promote_types(dtype, torch.float32)) for rank in range(3))
    for got in pool.run(reduce_and_gather_rows, count, dtype, piece_bytes):
        assert torch.equal(got, (a + b + c).to(dtype))


def gather_and_broadcast(context):
    group, own = everyone(context), torch.full((2, 2), float(context.rank))
    gathered = group.gathered(own)
    group.broadcast(own, 1)
    return gathered, own


def test_all_have_what_was_gathered_and_what_was_broadcast(pool):
    for gathered, own in pool.run(gather_and_broadcast):
        assert gathered[:, 0, 1].tolist() == [0.0, 1.0, 2.0] and gathered.shape == (3, 2, 2)
        assert own.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def round_about(context):
    """To the next rank two messages, from the one before two; one of nothing."""
    group = everyone(context)
    group.connect()
    after, before = (context.rank + 1) % 3, (context.rank - 1) % 3
    first, second, nothing = torch.full((4,), context.rank), torch.full((2, 2), 10 + context.rank), torch.empty(0)
    got = [torch.empty_like(first), torch.empty_like(second)]
    sends, receives = [(first, after), (nothing, after)], [(got[0], before), (nothing, before)]
    group.exchange(sends, receives).wait()
    sent, received = group.send(second, after), group.receive(got[1], before)
    received.wait()
    sent.wait()
    return got[0].tolist(), got[1].flatten().tolist()


def test_messages_arrive_in_the_order_in_which_they_were_sent(pool):
    expected = [([rank] * 4, [10 + rank] * 4) for rank in (2, 0, 1)]
    assert pool.run(round_about) == expected


def tell(context, source, data):
    return everyone(context).told(data if context.rank == source else b"", source)


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 9])
def test_bytes_of_one_rank_reach_all(pool, data):
    assert pool.run(tell, 1, data) == [data] * 3

"""Collectives that add up in rank order, against a sum in one process."""

import os
import time
import warnings

import pytest
import torch
from support.pool import everyone, gloo_pool
from support.sockets import listening

from hpcrl.errors import PeerLostError
from hpcrl.parallel.context import Group, ParallelContext, shard_bounds, socket_interfaces
from hpcrl.wire.address import LOOPBACK, Network


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


def totals_of_pairs(context):
    pairs = [(0, 2), (1, 2), (0, 1), (1,)]
    context.form(pairs)
    rank = torch.tensor([float(context.rank)], dtype=torch.float64)
    return [context.group(pair).total(rank).item() for pair in pairs if context.rank in pair]


def test_groups_of_some_ranks_may_overlap(pool):
    assert pool.run(totals_of_pairs) == [[2.0, 1.0], [3.0, 1.0, 1.0], [2.0, 3.0]]


def invite_again(context):
    context.leave()
    context.again = ParallelContext(context.rank, 3, context.device)
    return context.again.invite()


def wait_for_a_peer_that_never_comes(context, invitations):
    """Rank 0 waits for rank 1, which does something else."""
    context.again.join(invitations[0], timeout_s=3.0)
    context.again.form([(0, 1), (1, 2)])
    if context.rank != 0:
        return "", 0.0
    began = time.monotonic()
    try:
        context.again.group((0, 1)).total(torch.zeros(1))
    except PeerLostError as error:
        return str(error), time.monotonic() - began
    return "nothing", 0.0


def test_groups_of_some_ranks_wait_no_longer_than_the_timeout_of_all():
    with gloo_pool(3) as ranks:
        said, waited_s = ranks.run(wait_for_a_peer_that_never_comes, ranks.run(invite_again))[0]
    assert "imed out" in said
    assert 1.0 < waited_s < 60.0


def test_a_rank_that_raises_is_named(pool):
    with pytest.raises(AssertionError, match="no such luck"):
        pool.run(raise_on_rank_1)
    assert len(pool.run(totals)) == 3


def raise_on_rank_1(context):
    if context.rank == 1:
        raise ValueError("no such luck")


def test_alone_nothing_is_opened_and_everything_is_the_identity():
    context = ParallelContext(0, 1, torch.device("cpu"))
    assert context.invite() == ""
    context.join("")
    assert not torch.distributed.is_initialized()
    context.form([(0,)])
    group = context.group((0,))
    values, copy = torch.randn(5), torch.empty(5)
    assert torch.equal(group.reduce_scatter(values), values)
    group.all_gather(values, copy)
    assert torch.equal(copy, values)
    assert torch.equal(group.total(values), values)
    context.leave()


def test_a_rank_outside_a_group_cannot_hold_it():
    with pytest.raises(ValueError, match="not in tuple"):
        Group((0, 1), 2, torch.device("cpu"))


def meet_within(context, ports):
    context.leave()
    context.again = ParallelContext(context.rank, 2, context.device, Network(ports=tuple(ports)))
    return context.again.invite()


def listen_while_together(context, invitations):
    context.again.join(invitations[0], timeout_s=60.0)
    context.again.form([(0, 1)])
    context.again.group((0, 1)).total(torch.zeros(1))
    return listening(os.getpid())


def test_store_and_gloo_listen_where_the_network_says_and_nowhere_else():
    """The store asks nobody for a key, and by itself listens at all addresses of its node."""
    with gloo_pool(2) as ranks:
        invitation = ranks.run(meet_within, (22000, 22999))[0]
        at_0, at_1 = ranks.run(listen_while_together, [invitation, ""])
    host, _, port = invitation.rpartition(":")
    assert (host, 22000 <= int(port) <= 22999) == (LOOPBACK, True)
    assert (host, int(port)) in at_0
    assert len(at_0) > 1 and at_1, "gloo listens too"
    assert {address for address, _ in at_0 | at_1} == {LOOPBACK}


@pytest.mark.parametrize(
    ("network", "environ", "interfaces"),
    [
        (Network("10.10.3.7", "ib0", chosen=True), {"GLOO_SOCKET_IFNAME": "eth0"}, ("ib0", "=ib0")),
        (Network("10.0.0.7", "eth0"), {}, ("eth0", None)),
        (Network("10.0.0.7", "eth0"), {"GLOO_SOCKET_IFNAME": "ib1"}, ("ib1", None)),
        (Network("10.0.0.7", ""), {}, (None, None)),
    ],
)
def test_gloo_and_nccl_are_told_the_interface(network, environ, interfaces):
    told = socket_interfaces(network, environ)
    assert (told.get("GLOO_SOCKET_IFNAME"), told.get("NCCL_SOCKET_IFNAME")) == interfaces

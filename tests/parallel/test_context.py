"""Who meets whom, where, and how long they wait."""

import os
import time

import pytest
import torch
from support.pool import gloo_pool
from support.sockets import listening

from hpcrl.errors import PeerLostError
from hpcrl.parallel.context import ParallelContext, socket_interfaces, summing_order
from hpcrl.wire.address import LOOPBACK, Network


@pytest.fixture(scope="module")
def pool():
    with gloo_pool(3) as ranks:
        yield ranks


def totals_of_pairs(context):
    pairs = [(0, 2), (1, 2), (0, 1), (1,)]
    context.form(pairs)
    rank = torch.tensor([float(context.rank)], dtype=torch.float64)
    return [context.group(pair).total(rank).item() for pair in pairs if context.rank in pair]


def test_groups_of_some_ranks_may_overlap(pool):
    assert pool.run(totals_of_pairs) == [[2.0, 1.0], [3.0, 1.0, 1.0], [2.0, 3.0]]


def forming_twice(context):
    made = []
    context.form([(0, 1)])
    new_group, context._new_group = context._new_group, made.append
    context.form([(0, 1), (0, 1, 2), (2,)])
    context._new_group = new_group
    return made


def test_equal_ranks_share_a_group_that_is_made_once_on_members_and_others(pool):
    assert pool.run(forming_twice) == [[], [], []]


def invite_again(context):
    context.leave()
    context.again = ParallelContext(context.rank, 3, context.device)
    return context.again.invite()


def wait_for_a_peer_that_never_comes(context, invitations):
    """Rank 0 waits for rank 1, which does something else."""
    context.again.join(invitations[0], timeout_s=10.0)
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
    assert 3.0 < waited_s < 90.0


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


@pytest.mark.parametrize(
    ("deterministic", "environ", "told"),
    [
        (True, {}, {"NCCL_ALGO": "Ring"}),
        (True, {"NCCL_ALGO": "Tree"}, {}),
        (False, {}, {}),
    ],
)
def test_nccl_adds_up_around_a_ring_unless_its_user_says_otherwise(
    deterministic: bool, environ: dict[str, str], told: dict[str, str]
) -> None:
    assert summing_order(deterministic, environ) == told

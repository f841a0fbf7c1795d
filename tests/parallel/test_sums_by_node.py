"""Sums of a group on several nodes: on each node first, in rank order, then between nodes."""

from unittest import mock

import pytest
import torch
import torch.distributed as dist
from support.pool import gloo_pool

from hpcrl.parallel.context import ParallelContext
from hpcrl.parallel.group import Group
from hpcrl.placement.layouts import neighbours

NODES = (0, 0, 0, 1, 1, 1)


@pytest.fixture(scope="module")
def pool():
    with gloo_pool(6) as ranks:
        yield ranks


@pytest.mark.parametrize(
    ("ranks", "nodes", "expected"),
    [
        ((0, 1, 2, 3), (0, 0, 1, 1), 2),
        ((0, 1, 2, 3), (0, 0, 0, 0), 1),
        ((0, 2), (0, 0, 1, 1), 1),
        ((0, 1, 2), (0, 0, 1, 1), 1),
        ((0, 1, 2, 3), (0, 1, 0, 1), 1),
        ((2, 3, 6, 7), (0, 0, 0, 0, 1, 1, 1, 1), 2),
        ((0, 1, 2, 3, 4, 5), (4, 4, 7, 7, 9, 9), 2),
    ],
)
def test_neighbours_are_counted_where_all_nodes_have_as_many(ranks, nodes, expected):
    assert neighbours(ranks, nodes) == expected


def given(rank, dtype, shape=(30, 5)):
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank)).to(dtype)


def by_node(numbers, wide):
    """Six ranks on two nodes."""
    first, second = ((a.to(wide) + b.to(wide)) + c.to(wide) for a, b, c in (numbers[:3], numbers[3:]))
    return first + second


def two_nodes(context, **options):
    return Group(range(6), context.rank, context.device, neighbours=neighbours(range(6), NODES), **options)


def summed(context, dtype, piece_bytes):
    group = two_nodes(context, piece_bytes=piece_bytes)
    rows, flat = given(context.rank, dtype), given(context.rank, dtype, (131,))
    whole = torch.empty_like(flat)
    group.all_gather(group.reduce_scatter(flat), whole)
    return group.all_gather_rows(group.reduce_scatter_rows(rows)), whole


@pytest.mark.parametrize("piece_bytes", [64, 2**20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ranks_of_a_node_add_up_first_to_the_last_bit(pool, dtype, piece_bytes):
    rows, flat = ([given(rank, dtype, shape) for rank in range(6)] for shape in ((30, 5), (131,)))
    expected = by_node(rows, torch.float32).to(dtype), by_node(flat, dtype)
    other_order = torch.stack(flat).float().sum(0).to(dtype)
    for found in pool.run(summed, dtype, piece_bytes):
        assert all(map(torch.equal, found, expected))
        torch.testing.assert_close(found[1], other_order, atol=0.1 if dtype == torch.bfloat16 else 1e-5, rtol=0)


def crossed(context, by_nodes):
    """How many numbers this rank has sent to another node."""
    group = two_nodes(context) if by_nodes else Group(range(6), context.rank, context.device)
    sent, own = [], NODES[context.rank]
    real = dist.all_to_all_single

    def watched(received, rows, takes, gives, group):
        each = gives or [len(rows) // 6] * 6
        sent.append(sum(n for n, node in zip(each, NODES, strict=True) if node != own) * rows[0].numel())
        real(received, rows, takes, gives, group=group)

    with mock.patch.object(dist, "all_to_all_single", watched):
        group.reduce_scatter(given(context.rank, torch.float32, (600,)))
    return sum(sent)


def test_a_third_crosses_between_nodes_of_three(pool):
    assert pool.run(crossed, False) == [300] * 6
    assert pool.run(crossed, True) == [100] * 6


def by_the_library(context):
    group = two_nodes(context, deterministic=False)
    with mock.patch.object(dist, "all_to_all_single", None):
        return group.all_gather_rows(group.reduce_scatter_rows(given(context.rank, torch.float32)))


def test_without_determinism_the_library_adds_up(pool):
    expected = by_node([given(rank, torch.float32) for rank in range(6)], torch.float32)
    for found in pool.run(by_the_library):
        torch.testing.assert_close(found, expected)


def test_a_context_knows_who_is_a_neighbour():
    alone = ParallelContext(0, 1, torch.device("cpu"), nodes=(3,), deterministic=False)
    alone.form([(0,)])
    assert alone.group((0,)).size == 1 and alone.everyone == (0,)


def told(context):
    group = Group(range(6), context.rank, context.device)
    some = (1, 2, 4)
    return group.told(b"what it knows" * (context.rank == 2), 2, some) if context.rank in some else None


def test_a_few_are_told(pool):
    assert pool.run(told) == [None, b"what it knows", b"what it knows", None, b"what it knows", None]

"""The groups of a replica: those of the design's example, sums over parts and over shares."""

import pytest
import torch
from support.pool import gloo_pool

from hpcrl.parallel.group import Group
from hpcrl.parallel.replica import groups_of, over_data, sharing
from hpcrl.placement.layouts import Layout
from hpcrl.placement.shards import WHOLE, Cut


@pytest.fixture(scope="module")
def pool():
    with gloo_pool(8) as ranks:
        yield ranks


def test_groups_are_named_in_one_order_for_all_workers():
    mesh = tuple(range(8, 16))
    assert list(sharing(Layout(2, 2, 2), mesh)) == [
        *[(8, 9), (10, 11), (12, 13), (14, 15)],
        *[(8, 12), (9, 13), (10, 14), (11, 15)],
        *[(8, 10), (9, 11), (12, 14), (13, 15)],
        *[(8, 9, 12, 13), (10, 11, 14, 15)],
    ]


def work(context, layout, ranks):
    context.form(sharing(layout, ranks))
    if context.rank not in ranks:
        return None
    groups = groups_of(context, layout, ranks)
    own = torch.tensor([float(10**groups.dp.index if groups.cut.is_last else -1.0)], dtype=torch.float64)
    axes = (groups.dp.ranks, groups.tp.ranks, groups.pp.ranks, groups.block.ranks)
    everywhere = groups.total_of_shares(torch.tensor([10**context.rank]))
    return (
        groups.cut,
        axes,
        groups.block.index == groups.head,
        groups.total(own).tolist(),
        own.tolist(),
        everywhere.tolist(),
        groups.told_by_all(b"a" * context.rank),
    )


@pytest.mark.parametrize(
    "layout", [Layout(2, 2, 2), Layout(1, 2, 2), Layout(4), Layout(1, 4), Layout(1, 1, 4)], ids=str
)
def test_a_rank_has_its_cut_its_groups_and_sums_over_parts_that_all_know(pool, layout):
    ranks = tuple(range(8 - layout.size, 8))
    results = pool.run(work, layout, ranks)
    assert results[: 8 - layout.size] == [None] * (8 - layout.size)
    heads = [layout.data_part(part, ranks)[-layout.tp] for part in range(layout.dp)]
    for rank, (cut, axes, is_head, total, own, everywhere, told) in zip(ranks, results[8 - layout.size :], strict=True):
        for number, axis in enumerate(("dp", "tp", "pp")):
            assert axes[number] in layout.groups(axis, ranks) and rank in axes[number]
        assert (axes[1].index(rank), axes[2].index(rank)) == (cut.tensor, cut.stage)
        assert axes[3] in [layout.data_part(part, ranks) for part in range(layout.dp)] and rank in axes[3]
        assert is_head == (rank in heads)
        assert told == tuple(b"a" * other for other in ranks)
        assert total == [float(sum(10**part for part in range(layout.dp)))]
        assert own == [float(10 ** axes[0].index(rank)) if cut.is_last else -1.0]
        assert everywhere == [sum(10**other for other in ranks)]


def test_a_cut_is_that_of_the_layout(pool):
    cuts = [cut for cut, *_ in pool.run(work, Layout(2, 2, 2), tuple(range(8)))]
    assert cuts == [Cut(tensor, 2, stage, 2) for stage in (0, 1) for _ in (0, 1) for tensor in (0, 1)]


def test_a_replica_of_whole_models_has_no_other_axis():
    groups = over_data(Group((3,), 3, torch.device("cpu")))
    assert (groups.cut, groups.head, groups.block.ranks) == (WHOLE, 0, (3,))

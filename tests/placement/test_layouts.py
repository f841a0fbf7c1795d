"""Rank tables of layouts, and what layouts and meshes may look like."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.placement.layouts import Layout, mesh_text, parse_layout, parse_mesh

SECOND_NODE = tuple(range(8, 16))


@pytest.mark.parametrize(
    ("axis", "groups"),
    [
        ("pp", [(8, 12), (9, 13), (10, 14), (11, 15)]),
        ("tp", [(8, 9), (10, 11), (12, 13), (14, 15)]),
        ("dp", [(8, 10), (9, 11), (12, 14), (13, 15)]),
    ],
)
def test_groups_on_the_second_of_two_nodes_of_eight(axis, groups):
    assert Layout(dp=2, tp=2, pp=2).groups(axis, SECOND_NODE) == groups


@pytest.mark.parametrize("layout", [Layout(*sizes) for sizes in itertools.product((1, 2, 3), repeat=3)])
def test_groups_equal_those_of_a_row_major_grid(layout):
    """The oracle is DESIGN's sentence: row-major over (pp, dp, tp), tp fastest."""
    ranks = tuple(range(100, 100 + layout.size))
    grid = dict(zip(itertools.product(range(layout.pp), range(layout.dp), range(layout.tp)), ranks, strict=True))
    for axis, place in (("pp", 0), ("dp", 1), ("tp", 2)):
        expected = {}
        for coordinates, rank in grid.items():
            others = coordinates[:place] + coordinates[place + 1 :]
            expected.setdefault(others, []).append(rank)
        assert sorted(layout.groups(axis, ranks)) == sorted(map(tuple, expected.values()))
    for part in range(layout.dp):
        assert layout.data_part(part, ranks) == tuple(rank for (_, dp, _), rank in grid.items() if dp == part)


def test_a_group_of_one_rank_is_a_singleton():
    assert Layout(dp=2).groups("tp", (4, 7)) == [(4,), (7,)]
    assert Layout(dp=2).groups("pp", (4, 7)) == [(4,), (7,)]
    assert Layout(dp=2).groups("dp", (4, 7)) == [(4, 7)]


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("d4t2p1", Layout(4, 2, 1)),
        ("p1t2d4", Layout(4, 2, 1)),
        ("d2", Layout(2)),
        ("t2p3", Layout(1, 2, 3)),
        ("d16p2", Layout(16, 1, 2)),
        ("p1d2", Layout(2)),
    ],
)
def test_a_layout_is_read_as_it_is_written(text, layout):
    assert parse_layout(text) == layout
    assert parse_layout(str(layout)) == layout == parse_layout(layout.short)


def test_a_short_layout_has_no_size_of_one_but_where_all_are():
    assert [Layout(*sizes).short for sizes in [(4, 1, 2), (1, 2, 1), (1, 1, 1)]] == ["d4p2", "t2", "d1"]


@pytest.mark.parametrize("text", ["", "4", "d0", "d2d2", "d2p1d2", "d2 t2", "D2", "d-1", "d02"])
def test_what_is_no_layout_is_refused(text):
    with pytest.raises(ValueError, match="is not a layout"):
        parse_layout(text)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        (None, (0, 1, 2, 3, 4, 5, 6, 7)),
        ("0", (0,)),
        ("1-3", (1, 2, 3)),
        ("3,0-1", (0, 1, 3)),
        (" 0 , 2 ", (0, 2)),
        ("node1", (4, 5, 6, 7)),
        ("node[0-1]", (0, 1, 2, 3, 4, 5, 6, 7)),
        ("node[0,1]", (0, 1, 2, 3, 4, 5, 6, 7)),
        ("node0,node1", (0, 1, 2, 3, 4, 5, 6, 7)),
        ("node1:0,1", (4, 5)),
        ("node1:0-2", (4, 5, 6)),
        ("node0:0,1,node1:2,3", (0, 1, 6, 7)),
        ("node[0-1]:0,1", (0, 1, 4, 5)),
        ("3,node1", (3, 4, 5, 6, 7)),
        ("node1,3", (3, 4, 5, 6, 7)),
    ],
)
def test_a_mesh_names_workers(text, ranks):
    assert parse_mesh(text, nodes=2, slots=4) == ranks


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a mesh"),
        ("0-", "is not a mesh"),
        ("a", "is not a mesh"),
        ("node", "is not a mesh"),
        ("node0:", "is not a mesh"),
        ("node[]", "is not a mesh"),
        ("node[0-]", "is no list of numbers like 0,2-3"),
        ("node1x", "is not a mesh"),
        ("host01:0,1", "is not a mesh"),
        ("2-1", "runs backwards"),
        ("0-2,2", "names a worker twice"),
        ("node0,3", "names a worker twice"),
        ("0,8", "names worker 8, but the cluster has workers 0 to 7"),
        ("node2", "names node 2, but the cluster has nodes 0 to 1"),
        ("node1:4", "names worker 4, but a node has workers 0 to 3"),
    ],
)
def test_what_is_no_mesh_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        parse_mesh(text, nodes=2, slots=4)


@given(ranks=st.sets(st.integers(0, 11), min_size=1), nodes=st.sampled_from((1, 2, 3, 4, 6, 12)))
def test_a_mesh_is_read_as_it_is_written(ranks, nodes):
    assert parse_mesh(mesh_text(tuple(ranks)), nodes, 12 // nodes) == tuple(sorted(ranks))
    by_node = ",".join(f"node{rank * nodes // 12}:{rank % (12 // nodes)}" for rank in sorted(ranks))
    assert parse_mesh(by_node, nodes, 12 // nodes) == tuple(sorted(ranks))

"""Rank tables of layouts, and what layouts and meshes may look like."""

import itertools

import pytest

from hpcrl.placement.layouts import Layout, parse_layout, parse_mesh

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
    [("d4t2p1", Layout(4, 2, 1)), ("d2", Layout(2)), ("t2p3", Layout(1, 2, 3)), ("d16p2", Layout(16, 1, 2))],
)
def test_a_layout_is_read_as_it_is_written(text, layout):
    assert parse_layout(text) == layout
    assert parse_layout(str(layout)) == layout


@pytest.mark.parametrize("text", ["", "4", "d0", "d2d2", "p1d2", "d2 t2", "D2", "d-1", "d02"])
def test_what_is_no_layout_is_refused(text):
    with pytest.raises(ValueError, match="is not a layout"):
        parse_layout(text)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [(None, (0, 1, 2, 3)), ("0", (0,)), ("1-3", (1, 2, 3)), ("3,0-1", (0, 1, 3)), (" 0 , 2 ", (0, 2))],
)
def test_a_mesh_names_workers(text, ranks):
    assert parse_mesh(text, world=4) == ranks


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a mesh"),
        ("0-", "is not a mesh"),
        ("a", "is not a mesh"),
        ("2-1", "runs backwards"),
        ("0-2,2", "names a worker twice"),
        ("0,4", "names worker 4, but the cluster has workers 0 to 3"),
    ],
)
def test_what_is_no_mesh_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        parse_mesh(text, world=4)

import itertools

import pytest

from hpcrl.placement.layouts import parse_layout
from hpcrl.placement.plan import ModelName, ReplicaPlan
from hpcrl.workers.pieces import held, saved, transfers

LAYOUTS = ["d1", "d3", "t2", "p2", "d2t2", "d2p2", "t2p2", "d2t2p2", "p3"]
MESHES = [tuple(range(12)), tuple(range(4, 16)), tuple(reversed(range(12)))]


def placed(layout: str, mesh: tuple[int, ...]) -> ReplicaPlan:
    return ReplicaPlan(ModelName("actor"), layout, mesh[: parse_layout(layout).size], True)


@pytest.mark.parametrize("width", [0, 1, 5, 16])
@pytest.mark.parametrize("text", LAYOUTS)
def test_each_part_has_every_element_once_and_all_ranks_together_save_it_once(text: str, width: int) -> None:
    layout = parse_layout(text)
    for data in range(layout.dp):
        ranks = layout.data_part(data, tuple(range(layout.size)))
        pieces = [held(layout, rank, width) for rank in ranks]
        assert [i for piece in pieces for i in range(*piece)] == list(range(width))
    kept = [i for rank in range(layout.size) for i in range(*saved(layout, rank, width))]
    assert sorted(kept) == list(range(width))


@pytest.mark.parametrize(("source", "target"), list(itertools.product(LAYOUTS, LAYOUTS)))
def test_every_rank_of_the_target_gets_its_piece_from_ranks_that_have_it(source: str, target: str) -> None:
    width = 13
    for mesh in MESHES:
        home, replica = placed(source, MESHES[0]), placed(target, mesh)
        has = {rank: set(range(*held(home.arrangement, index, width))) for index, rank in enumerate(home.ranks)}
        due = transfers(home, replica, width)
        assert all(set(range(*one.piece)) <= has[one.source] for one in due)
        for index, rank in enumerate(replica.ranks):
            got = [i for one in due if one.target == rank for i in range(*one.piece)]
            assert got == list(range(*held(replica.arrangement, index, width)))
            mine = set(got) & has.get(rank, set())
            assert mine == {i for one in due if one.target == one.source == rank for i in range(*one.piece)}

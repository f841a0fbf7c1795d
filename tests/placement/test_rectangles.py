import itertools

import numpy as np
import pytest
from support.moving import places

from hpcrl.placement.rectangles import NONE, Rectangles


@pytest.mark.parametrize("numel", [1, 2, 3, 7, 20, 500])
def test_pieces_are_the_same_elements_in_the_same_order(numel: int) -> None:
    draw = np.random.default_rng(numel)
    for _ in range(30):
        count = draw.integers(1, 6)
        rows, runs = draw.integers(1, 6, (2, count))
        whole = Rectangles(draw.integers(0, 99, count), runs + draw.integers(0, 4, count), rows, runs)
        ends = [*range(0, whole.numel, numel), whole.numel]
        pieces = list(whole.pieces(stop - start for start, stop in itertools.pairwise(ends)))
        assert np.concatenate([places(piece) for piece in pieces]).tolist() == places(whole).tolist()
        assert all(piece.numel == numel for piece in pieces[:-1]) and 0 < pieces[-1].numel <= numel
        assert all(len(piece) <= count + 4 for piece in pieces)


def test_nothing_has_no_pieces() -> None:
    assert not list(NONE.pieces([]))

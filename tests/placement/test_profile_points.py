"""What a profile measures, and what it makes of it: grids that follow from few points, parts out of whole calls."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from hpcrl.families.config import DecoderConfig
from hpcrl.placement.flops import flops_of
from hpcrl.placement.profile_points import DENSEST, FEW, MANY, Grid, PartTimes, Timed, explored, sides_of
from hpcrl.placement.rates import Surface

MODEL = DecoderConfig(
    family="qwen2", vocabulary_size=64, hidden_size=32, intermediate_size=64, blocks=8, heads=4, kv_heads=2, head_dim=8,
    max_positions=512, head="vocabulary",
)  # fmt: skip
X, Y = (64, 4096), (8, 64)


def curved(x: int, y: int) -> float:
    """Faster by the token the more there are."""
    return float(x**0.7) + 1e-4 * x * y


def straight(x: int, y: int) -> float:
    return 3.0 + 0.1 * x + 0.001 * x * y


def grid_of(measure, more=lambda: True) -> Grid:
    return explored(measure, X, Y, 64, more)


def test_points_are_added_until_those_between_others_follow_from_them() -> None:
    grid = grid_of(curved)
    surface = Surface.of([(x, y, curved(x, y)) for x, y in product(*grid)])
    assert 2 < len(grid.xs) <= DENSEST
    for x in (128, 320, 640, 1280, 2560):
        assert float(surface.at(np.array([x]), np.array([8]))[0]) == pytest.approx(curved(x, 8), rel=0.06), grid


def test_what_is_straight_or_has_no_time_left_is_measured_at_its_corners() -> None:
    assert grid_of(straight) == grid_of(curved, lambda: False) == Grid(X, Y)


@pytest.mark.parametrize("tokens", [1, 100, 5000])
def test_sides_are_of_whole_texts_that_the_model_takes(tokens: int) -> None:
    sides = sides_of(tokens, 300, 16, positions=128)
    assert sides.lengths == sides.contexts == (8, 64) and sides.rows == (1, 16)
    assert all(it % 64 == 0 for it in sides.tokens) and sides.tokens[0] < sides.tokens[1]


def test_parts_come_back_out_of_whole_calls() -> None:
    """Times made of known parts: a block 5 + 2 a token, a head 7 a label, an entry of 11, 3 a text, and 400 + 30 a
    block in each call; rows that predict nothing leave the last block after its attention."""
    flops = flops_of(replace(MODEL, blocks=1))
    assert flops is not None
    ends = flops.forward_pass.end / flops.forward_pass.row

    def whole(blocks: int, tokens: int, labels: int, texts: int) -> float:
        block = 5 + 2 * tokens
        return once(blocks) + 11 + 3 * texts + blocks * block - ends * (1 - labels / tokens) * block + 7 * labels

    def once(blocks: int) -> float:
        return 400 + 30 * blocks

    points = [Timed("forward", 0, 0, once(FEW), once(MANY))] + [
        Timed("forward", x, y, *(whole(blocks, x, x if y else x // 8, x // (y or 8)) for blocks in (FEW, MANY)))
        for x in (64, 512)
        for y in (8, 64, 0)
    ]
    block, head, entry, text, *of_call = (it.surface for it in PartTimes(MODEL, "native", "fp32", 1, points).pieces())
    for tokens in (64, 200, 512):
        x, one = np.array([tokens]), np.ones(1)
        assert block.at(x, 20 * one)[0] == pytest.approx((5 + 2 * tokens) * 1e9)
        assert head.at(x, one)[0] == pytest.approx(7e9 * tokens)
        assert entry.at(x, one)[0] == pytest.approx(11e9)
        assert text.at(x / 8, one)[0] == pytest.approx(3e9 * tokens / 8)
        assert [it.at(x, one)[0] for it in of_call] == pytest.approx([30e9, 400e9])

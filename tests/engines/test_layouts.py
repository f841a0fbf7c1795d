"""Engines in layouts of several axes against one process, in float64: predictions, three updates, what is generated."""

from functools import cache

import pytest
from support.layouts import ROWS, alone, compare, on_rank
from support.pool import gloo_pool
from support.tiny_models import (
    gemma2_config,
    gemma3_config,
    gpt2_config,
    mixtral_config,
    qwen3_config,
    qwen3_moe_config,
    tiny_config,
)

from hpcrl.families.config import Experts
from hpcrl.placement.layouts import Layout, parse_layout

MODELS = {
    "odd vocabulary": tiny_config(blocks=4, kv_heads=1, vocabulary_size=61, tied=True),
    "critic": tiny_config(blocks=4, head="value"),
    "gpt2": gpt2_config(blocks=4),
    "qwen3": qwen3_config(blocks=4, kv_heads=2),
    "gemma2": gemma2_config(blocks=4, vocabulary_size=61),
    "gemma3": gemma3_config(blocks=4),
    "mixtral": mixtral_config(blocks=4),
    "whole experts": mixtral_config(blocks=4, experts=Experts(4, 2, 48, cut="whole")),
    "qwen3_moe": qwen3_moe_config(blocks=4),
    "seven": tiny_config(blocks=7, tied=True),
}
SIZES = (1, 2, 4)
ALL = [Layout(dp, tp, pp) for dp in SIZES for tp in SIZES for pp in SIZES if 1 < dp * tp * pp <= 8]
QUICK = [
    ("odd vocabulary", "d2t2"),
    ("critic", "t4"),
    ("gpt2", "t2"),
    ("gemma2", "t2p2"),
    ("mixtral", "t2p2"),
    ("whole experts", "t4"),
]
"""Each that has something of its own to cut; those that are cut alike are slow."""
LIKE_THEM = [("qwen3", "t2p2"), ("gemma3", "t2p2"), ("qwen3_moe", "t2p2")]
WIDE = LIKE_THEM + [(name, str(layout)) for name in ("odd vocabulary", "critic") for layout in ALL]
BLOCKS = ("gpt2", "qwen3", "gemma2", "gemma3", "mixtral", "whole experts", "qwen3_moe")
WIDE += [(name, layout) for name in BLOCKS for layout in ("d2t2p2", "t4p2")]
WIDE += [("seven", "p3"), ("seven", "t2p3")]


@pytest.fixture(scope="module")
def pool():
    with gloo_pool(4) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def wide_pool():
    with gloo_pool(8) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def expected():
    return cache(lambda name: alone(MODELS[name]))


def check(pool, expected, name, layout):
    split = [list(range(part, len(ROWS), layout.dp)) for part in range(layout.dp)]
    found = [result for result in pool.run(on_rank, MODELS[name], layout, split) if result is not None]
    compare(MODELS[name], layout, found, expected(name))


@pytest.mark.parametrize(("name", "layout"), QUICK)
def test_a_layout_gives_what_one_process_gives(pool, expected, name, layout):
    check(pool, expected, name, parse_layout(layout))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layout"), WIDE)
def test_all_layouts_give_what_one_process_gives(wide_pool, expected, name, layout):
    check(wide_pool, expected, name, parse_layout(layout))


def test_a_part_may_be_empty(pool, expected):
    layout, name = Layout(dp=2, tp=2), "odd vocabulary"
    found = pool.run(on_rank, MODELS[name], layout, [list(range(len(ROWS))), []])
    compare(MODELS[name], layout, found, expected(name))


def test_one_micro_batch_gives_the_same(pool, expected):
    layout, name = Layout(tp=2, pp=2), "critic"
    found = pool.run(on_rank, MODELS[name], layout, [list(range(len(ROWS)))], 10_000)
    compare(MODELS[name], layout, found, expected(name))

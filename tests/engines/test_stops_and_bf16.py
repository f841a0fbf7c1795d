"""Strings that end responses, and bf16, where ranks share a model: what one process gives."""

from functools import partial

import numpy as np
import pytest
import torch
from support.layouts import PROMPTS, ROWS, SEEDS, columns_of, groups_in, objective
from support.pool import gloo_pool
from support.tiny import native
from support.tiny_models import tiny_config, tiny_model
from support.tiny_tokenizer import train_tokenizer

from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import OptimizerConfig
from hpcrl.data.tokens import load_tokens
from hpcrl.engines.engine import Sequences, Update
from hpcrl.models.generation import GenerationOptions, Generator, Pace
from hpcrl.models.stopping import StopStrings
from hpcrl.placement.layouts import parse_layout

SIZE = 280
STRINGS = ("é", "ab", "#", "na")
STARTS = [np.arange(3, 5 + i % 6) for i in range(24)]
LAYOUTS = ["p2", "t2", "t2p2", "p4"]


@pytest.fixture(scope="module")
def pool():
    with gloo_pool(4) as ranks:
        yield ranks


def stopped(folder, groups=None, late=0):
    """Responses in few slots, so that rows enter as others end; and whether they have ended. The host reads tokens so
    many visits `late`."""
    tokens = load_tokens(folder)
    stops = partial(StopStrings, tokens, STRINGS)
    options = GenerationOptions(max_new_tokens=24, min_new_tokens=2, eos_token_ids=tokens.eos_ids, stops=stops, slots=9)
    config, cut = tiny_config(blocks=4, vocabulary_size=SIZE), {}
    if groups is not None:
        cut = {"cut": groups.cut, "tensor": groups.tp}
    generator = Generator(
        tiny_model(config, seed=1, dtype=torch.float64, **cut),
        options,
        None if groups is None else groups.pp,
        Pace(late),
    )
    made = generator.generate(STARTS, [7 * i for i in range(len(STARTS))])
    return [row.tolist() for row in made.tokens], made.logprobs, made.finished


def stopped_on_rank(context, layout, folder):
    groups = groups_in(context, layout)
    return None if groups is None else [stopped(folder, groups, late) for late in (0, 1)]


@pytest.mark.parametrize("layout", [pytest.param(it, marks=() if it == "t2p2" else pytest.mark.slow) for it in LAYOUTS])
def test_strings_end_the_same_rows_on_all_ranks_as_in_one_process(pool, tmp_path, layout):
    folder = train_tokenizer(tmp_path, ["na na na ab # é", "abab cd"], size=SIZE)
    tokens, logprobs, finished = stopped(folder)
    assert sum(finished) > 3 and len({len(row) for row in tokens}) > 3
    for of_rank in pool.run(stopped_on_rank, parse_layout(layout), folder):
        for found in of_rank or ():
            assert (found[0], found[2]) == (tokens, finished)
            np.testing.assert_allclose(np.concatenate(found[1]), np.concatenate(logprobs), rtol=0, atol=1e-9)


def in_bf16(groups):
    """How far the log-probabilities of generated tokens are from those computed anew; those of given rows; a loss."""
    options = {} if groups is None else {"group": groups}
    config = tiny_config(blocks=4, hidden_size=64, heads=4, kv_heads=2, head_dim=16)
    engine = native(dtype=torch.bfloat16, config=config, optimizer=OptimizerConfig(lr=1e-3), **options)
    made = engine.generate(PROMPTS, SEEDS, GenerationConfig(max_new_tokens=12, min_new_tokens=12))
    again = engine.forward(Sequences.from_rows(PROMPTS, made.tokens))
    before = engine.forward(ROWS)
    result = engine.train_batch(ROWS, columns_of(range(len(ROWS))), objective(True), Update(1, 0, 1))
    return np.abs(again - np.concatenate(made.logprobs)).max(), before, result.loss, result.grad_norm


def in_bf16_on_rank(context, layout):
    groups = groups_in(context, layout)
    return None if groups is None else in_bf16(groups)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_in_bf16_a_layout_is_no_less_exact_than_one_process(pool, layout):
    """Stages round as one process does. Sums over tensor ranks round otherwise, by as much as generation and training
    differ in one process."""
    shape, one = parse_layout(layout), in_bf16(None)
    assert 0 < one[0] < 0.2
    for found in pool.run(in_bf16_on_rank, shape):
        if found is None:
            continue
        if shape.tp == 1:
            assert (found[0], *found[2:]) == (one[0], *one[2:])
            np.testing.assert_array_equal(found[1], one[1])
        else:
            assert found[0] < 1.5 * one[0]
            np.testing.assert_allclose(found[1], one[1], rtol=0, atol=1.5 * one[0])
            assert found[2:] == pytest.approx(one[2:], rel=0.03)

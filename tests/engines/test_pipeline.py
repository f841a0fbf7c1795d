"""Stages on ranks of their own against one process, in float64: predictions, updates, what is generated."""

from dataclasses import replace
from functools import cache
from weakref import WeakKeyDictionary

import numpy as np
import pytest
import torch
from support.pool import gloo_pool
from support.tiny import native
from support.tiny_models import gpt2_config, qwen3_config, tiny_config

from hpcrl.algos.functional.losses import counted
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import OptimizerConfig
from hpcrl.engines.engine import Columns, Objective, Sequences, Update
from hpcrl.parallel.replica import groups_of, sharing
from hpcrl.placement.layouts import Layout, parse_layout

OPTIMIZER = OptimizerConfig(lr=0.02, eps=1.0, weight_decay=0.1, grad_clip=0.05)
MODELS = {
    "tied": tiny_config(blocks=4, tied=True),
    "untied": tiny_config(blocks=4),
    "critic": tiny_config(blocks=4, tied=True, head="value"),
    "gpt2": gpt2_config(blocks=4),
    "qwen3": qwen3_config(blocks=4),
    "seven": tiny_config(blocks=7, tied=True),
}
QUICK = [("tied", "p2"), ("tied", "d2p2"), ("seven", "p3"), ("critic", "p2"), ("gpt2", "p4")]
WIDE = [(name, layout) for name in MODELS for layout in ("p2", "p3", "p4", "d2p2") if (name, layout) not in QUICK]
CASES = [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in WIDE)]


@pytest.fixture(scope="module")
def pool():
    with gloo_pool(4) as ranks:
        yield ranks


def some_rows():
    """Rows of very different lengths, several of one prompt among them; and prompts to go on with."""
    draw = np.random.default_rng(0)
    prompts = [draw.integers(1, 64, size, np.int32) for size in (23, 9, 14, 30, 3, 1)]
    owners = [0, 2, 4, 0, 1, 0, 3, 2, 0, 4, 3, 5, 0]
    responses = [draw.integers(0, 64, size, np.int32) for size in (5, 1, 4, 1, 3, 9, 9, 5, 5, 2, 1, 7, 12)]
    return [prompts[owner] for owner in owners], responses


PROMPTS, RESPONSES = some_rows()
ROWS = Sequences.from_rows(PROMPTS, RESPONSES)
SEEDS = [7 * row + 1 for row in range(len(PROMPTS))]


def objective(entropy):
    def loss(predictions, columns):
        chosen = predictions.values if len(predictions.values) else predictions.log_probs
        share = columns["weights"] * columns["advantages"] * chosen.square()
        if entropy:
            share = share - 0.01 * columns["weights"] * predictions.entropy
        return share.sum(), {"chosen": counted(chosen.detach(), torch.ones_like(chosen))}

    return Objective(loss, temperature=0.8, with_entropy=entropy)


def columns_of(rows):
    numbers = np.split(np.sin(np.arange(ROWS.labels.sum())), np.cumsum(ROWS.labels)[:-1])
    picked = np.concatenate([numbers[row] for row in rows] or [np.zeros(0)])
    return Columns({"advantages": picked, "weights": np.full(len(picked), 1 / ROWS.labels.sum())})


def learnt(engine, rows, updates=3):
    """What three updates of these rows say, and what becomes of the parameters that the rank has."""
    entropy = not engine._model.gives_values
    results = [
        engine.train_batch(ROWS.select(rows), columns_of(rows), objective(entropy), Update(1, index, updates))
        for index in range(updates)
    ]
    said = [(result.loss, result.grad_norm, *result.totals["chosen"], result.decision) for result in results]
    return said, {name: view.detach().clone() for name, view in engine._model.transformer.views.items()}


def drawn(engine, rows):
    """Greedy, sampled, and sampled in few slots; and sampled where some tokens are drawn already."""
    configs = (
        GenerationConfig(max_new_tokens=12, greedy=True),
        GenerationConfig(max_new_tokens=17, min_new_tokens=3, temperature=0.9, slots=4),
        GenerationConfig(max_new_tokens=9, top_p=0.8, slots=1),
    )
    prompts, seeds = [PROMPTS[row] for row in rows], [SEEDS[row] for row in rows]
    made = [engine.generate(prompts, seeds, config) for config in configs]
    begun = [tokens[: 2 + row % 3] for row, tokens in zip(rows, made[1].tokens, strict=True)]
    limits = [3 + row % 3 + row % 5 for row in rows]
    return [*made, engine.generate(prompts, seeds, configs[1], begun, limits)]


def groups_in(context, layout):
    """This rank's in a replica on the first ranks; None on the others."""
    ranks = tuple(range(layout.size))
    context.form(sharing(layout, ranks))
    return groups_of(context, layout, ranks) if context.rank in ranks else None


def work(context, name, layout, split, micro_batch_tokens):
    groups = groups_in(context, layout)
    if groups is None:
        return None
    engine = native(
        MODELS[name].head, group=groups, micro_batch_tokens=micro_batch_tokens, optimizer=OPTIMIZER, config=MODELS[name]
    )
    rows = split[groups.dp.index]
    before = engine.forward(ROWS.select(rows), 0.8)
    said, parameters = learnt(engine, rows)
    made = [] if MODELS[name].head == "value" or not rows else drawn(engine, rows)
    return rows, before, said, parameters, made


def alone(name):
    engine = native(MODELS[name].head, optimizer=OPTIMIZER, config=MODELS[name])
    everything = list(range(len(ROWS)))
    before = engine.forward(ROWS, 0.8)
    said, parameters = learnt(engine, everything)
    return before, said, parameters, [] if MODELS[name].head == "value" else drawn(engine, everything)


@pytest.fixture(scope="module")
def expected():
    """What one process does with a model, by its name."""
    return cache(alone)


def compare(found, reference):
    """What a rank found with what one process did."""
    rows, before, said, parameters, made = found
    all_before, all_said, all_parameters, all_made = reference
    per_row = np.split(all_before, np.cumsum(ROWS.labels)[:-1])
    own = np.concatenate([np.zeros(0, np.float32), *(per_row[row] for row in rows)])
    np.testing.assert_allclose(before, own, rtol=0, atol=1e-9)
    for ours, theirs in zip(said, all_said, strict=True):
        assert ours[:-1] == pytest.approx(theirs[:-1], rel=1e-9, abs=1e-11)
        assert ours[-1] == theirs[-1]
        assert ours[1] > OPTIMIZER.grad_clip
    for key, parameter in parameters.items():
        torch.testing.assert_close(parameter, all_parameters[key], rtol=0, atol=1e-9)
    for ours, theirs in zip(made, all_made if rows else [], strict=True):
        for place, row in enumerate(rows):
            np.testing.assert_array_equal(ours.tokens[place], theirs.tokens[row])
            np.testing.assert_allclose(ours.logprobs[place], theirs.logprobs[row], rtol=0, atol=1e-9)
            assert ours.finished[place] == theirs.finished[row]


@pytest.mark.parametrize(("name", "layout"), CASES)
def test_stages_give_what_one_process_gives(pool, expected, name, layout):
    shape = parse_layout(layout)
    split = [list(range(part, len(ROWS), shape.dp)) for part in range(shape.dp)]
    results = [result for result in pool.run(work, name, shape, split, 40) if result is not None]
    assert len(results) == shape.size
    for found in results:
        compare(found, expected(name))


@pytest.mark.parametrize("micro_batch_tokens", [60, *(pytest.param(it, marks=pytest.mark.slow) for it in (1, 10_000))])
def test_any_number_of_micro_batches_gives_the_same(pool, expected, micro_batch_tokens):
    for found in pool.run(work, "tied", Layout(pp=4), [list(range(len(ROWS)))], micro_batch_tokens):
        compare(found, expected("tied"))


def test_a_part_may_be_empty(pool, expected):
    for found in pool.run(work, "tied", Layout(dp=2, pp=2), [list(range(len(ROWS))), []], 40):
        compare(found, expected("tied"))


def test_a_tied_matrix_stays_the_same_on_both_stages(pool):
    results = pool.run(work, "tied", Layout(dp=2, pp=2), [[0, 1, 2, 3], [*range(4, len(ROWS))]], 40)
    embeddings = [found[3]["layers.0.embedding"] for found in results]
    assert all(torch.equal(embeddings[0], other) for other in embeddings[1:])


def refusing(context, layout):
    groups, seen = groups_in(context, layout), []
    engine = native(group=groups, optimizer=OPTIMIZER, micro_batch_tokens=40, config=MODELS["tied"])
    refused = replace(objective(True), refuses=lambda means: not seen.append(means["chosen"]))
    rows = list(range(groups.dp.index, len(ROWS), layout.dp))
    before = engine._model.transformer.memory.data.clone()
    result = engine.train_batch(ROWS.select(rows), columns_of(rows), refused, Update(1, 0, 1))
    assert torch.equal(engine._model.transformer.memory.data, before)
    return result.decision.outcome, seen


def test_all_stages_judge_an_update_by_the_same_means(pool):
    results = pool.run(refusing, Layout(dp=2, pp=2))
    assert results == [("refused", results[0][1])] * 4
    assert len(results[0][1]) == 1


def most_kept(context, layout):
    """Of how many micro-batches a stage has anything for a backward pass at a time, and how many there are."""
    groups = groups_in(context, layout)
    if groups is None:
        return None
    engine = native(group=groups, micro_batch_tokens=40, config=MODELS["tied"])
    alive, visits, most = WeakKeyDictionary(), [0], 0

    class Kept:
        def __init__(self, tensor):
            self.tensor = tensor
            alive[self] = visits[0]

    def watched(compute):
        def computed(*args, **options):
            nonlocal most
            visits[0] += 1
            made = compute(*args, **options)
            output = made if torch.is_tensor(made) else made.log_probs
            alive[output] = visits[0]
            most = max(most, len(set(alive.values())))
            return made

        return computed

    model = engine._model
    model.forward, model.rows = watched(model.forward), watched(model.rows)
    everything = range(len(ROWS))
    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        engine.train_batch(ROWS, columns_of(everything), objective(True), Update(1, 0, 1))
    return most, visits[0]


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_stage_keeps_activations_of_no_more_micro_batches_than_stages_from_it_on(pool, stages):
    found = [result for result in pool.run(most_kept, Layout(pp=stages)) if result is not None]
    assert all(visits > stages for _, visits in found)
    assert [most for most, _ in found] == [stages - stage for stage in range(stages)]

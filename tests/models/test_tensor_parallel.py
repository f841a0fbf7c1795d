"""A model cut over tensor ranks against the whole model in one process, in float64."""

import numpy as np
import pytest
import torch
from support.cut_models import CONFIGS, assembled, cut_model, gradients
from support.pool import everyone, gloo_pool

from hpcrl.data import logit_rows
from hpcrl.models import vocabulary
from hpcrl.models.packing import Packing
from hpcrl.placement.shards import Cut

PACKINGS = {
    "shared prefixes": ([23, 5, 9, 1, 12], [-1, 0, 0, -1, -1]),
    "one token": ([1], None),
    "three tokens": ([2, 1], None),
}
TOLERANCE = {"rtol": 0, "atol": 1e-11}


@pytest.fixture(scope="module", params=[2, 4])
def pool(request):
    with gloo_pool(request.param) as ranks:
        yield ranks


def case(config, packed, rows):
    lengths, prefixes = PACKINGS[packed]
    draw = np.random.default_rng(1)
    tokens = torch.from_numpy(draw.integers(0, config.vocabulary_size, sum(lengths)))
    labels = torch.from_numpy(draw.integers(0, config.vocabulary_size, rows))
    return (
        tokens,
        Packing.of(lengths, prefixes=prefixes),
        torch.from_numpy(draw.integers(0, sum(lengths), rows)),
        labels,
    )


def learn(model, packed, rows, with_entropy=True):
    """Predictions, and gradients of something that each of them counts in."""
    predictions = model(*case(model.config, packed, rows), temperature=0.7, with_entropy=with_entropy)
    found = [part for part in (predictions.log_probs, predictions.entropy, predictions.values) if len(part)]
    for number, part in enumerate(found):
        (part * torch.arange(1, rows + 1)).square().sum().mul(number + 1).backward(retain_graph=True)
    model.add_up_gradients()
    return [part.detach() for part in found], gradients(model)


def on_rank(context, name, packed, rows):
    return learn(cut_model(CONFIGS[name], everyone(context)), packed, rows)


CASES = [(name, "shared prefixes", 6) for name in CONFIGS]
CASES += [("1 kv head", packed, rows) for packed, rows in (("one token", 1), ("three tokens", 2), ("one token", 5))]
CASES += [("gpt2", "one token", 1), ("critic", "three tokens", 3)]


@pytest.mark.parametrize(("name", "packed", "rows"), CASES)
def test_predictions_and_gradients_equal_one_process(pool, name, packed, rows):
    expected, of_parameters = learn(cut_model(CONFIGS[name]), packed, rows)
    results = pool.run(on_rank, name, packed, rows)
    for found, _ in results:
        for ours, theirs, first in zip(found, expected, results[0][0], strict=True):
            torch.testing.assert_close(ours, theirs, **TOLERANCE)
            assert torch.equal(ours, first), "all ranks have the same bits"
    whole = assembled(CONFIGS[name], [(Cut(tensor, pool.size), own) for tensor, (_, own) in enumerate(results)])
    assert whole.keys() == of_parameters.keys()
    for key, gradient in whole.items():
        torch.testing.assert_close(
            gradient, of_parameters[key], rtol=0, atol=1e-10, msg=lambda text, key=key: key + text
        )


def in_chunks(context, rows_held):
    """Logits of 6 rows, of which so many are held at once: how often some are computed, and what is learned."""
    made, room = 0, logit_rows.CPU_CHUNK
    compute = vocabulary.linear
    model = cut_model(CONFIGS["odd vocabulary"], everyone(context))

    def counted(*args):
        nonlocal made
        made += 1
        return compute(*args)

    logit_rows.CPU_CHUNK, vocabulary.linear = rows_held * model.vocabulary.count, counted
    try:
        learned = learn(model, "shared prefixes", 6)
        return made, learned
    finally:
        logit_rows.CPU_CHUNK, vocabulary.linear = room, compute


def test_logits_are_computed_again_only_where_not_all_are_held(pool):
    expected, of_parameters = learn(cut_model(CONFIGS["odd vocabulary"]), "shared prefixes", 6)
    learned = {rows: pool.run(in_chunks, rows) for rows in (6, 4)}
    assert [made for made, _ in learned[6]] == [1] * pool.size, "both backward passes use what forward has made"
    assert [made for made, _ in learned[4]] == [6] * pool.size, "two chunks, in a forward and two backward passes"
    for ranks in learned.values():
        for _, (found, _) in ranks:
            for ours, theirs in zip(found, expected, strict=True):
                torch.testing.assert_close(ours, theirs, **TOLERANCE)
        whole = assembled(
            CONFIGS["odd vocabulary"], [(Cut(tensor, pool.size), own) for tensor, (_, (_, own)) in enumerate(ranks)]
        )
        for key, gradient in whole.items():
            torch.testing.assert_close(gradient, of_parameters[key], rtol=0, atol=1e-10)

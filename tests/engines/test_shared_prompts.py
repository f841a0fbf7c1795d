"""Responses that attend to one copy of their prompt against rows that each have their own, in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.pool import everyone, gloo_pool
from support.tiny import ALONE, CONFIG, flat, native
from support.tiny_models import gpt2_config

from hpcrl.algos.functional.losses import counted
from hpcrl.config.model import OptimizerConfig
from hpcrl.engines.engine import Columns, Objective, Sequences, Update

OPTIMIZER = OptimizerConfig(lr=0.02, eps=1.0, weight_decay=0.1, grad_clip=0.0)


def sequences(labelled="response"):
    """Groups of five, one, three and two rows with a prompt each, mixed, and rows whose prompt is short."""
    draw = np.random.default_rng(0)
    prompts = [draw.integers(0, CONFIG.vocabulary_size, size, np.int32) for size in (23, 9, 14, 30, 3)]
    owners = [0, 2, 4, 0, 1, 0, 3, 2, 0, 4, 3, 2, 0]
    sizes = [5, 1, 4, 1, 3, 9, 9, 5, 5, 2, 1, 7, 12]
    responses = [draw.integers(0, CONFIG.vocabulary_size, size, np.int32) for size in sizes]
    return Sequences.from_rows([prompts[owner] for owner in owners], responses, labelled=labelled)


SHARING = sequences()
APART = replace(SHARING, prompts=np.zeros(len(SHARING), np.int64))


@pytest.mark.parametrize("labelled", ["response", "response and after", "after"])
@pytest.mark.parametrize(("head", "config"), [("vocabulary", CONFIG), ("value", CONFIG), ("vocabulary", gpt2_config())])
def test_predictions_equal_those_of_rows_with_a_prompt_of_their_own(head, config, labelled, device):
    sharing = sequences(labelled)
    model = native(head, optimizer=None, device=device, config=config)._model
    apart = replace(sharing, prompts=np.zeros(len(sharing), np.int64))
    found, expected = (model.forward(rows, 0.8, with_entropy=True) for rows in (sharing, apart))
    for name in ("log_probs", "entropy", "values"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=0, atol=1e-12)
    assert torch.equal(found.cu_labels, expected.cu_labels)


def loss(predictions, columns):
    chosen = predictions.values if len(predictions.values) else predictions.log_probs
    share = columns["weights"] * columns["advantages"]
    return (share * chosen.square()).sum(), {"chosen": counted(chosen.detach(), torch.ones_like(chosen))}


def trained(rows, head, group=ALONE, micro_batch_tokens=1000, part=None, device="cpu", config=CONFIG):
    options = {"optimizer": OPTIMIZER, "device": device, "config": config}
    engine = native(head, group=group, micro_batch_tokens=micro_batch_tokens, **options)
    numbers = np.split(np.sin(np.arange(rows.labels.sum())), np.cumsum(rows.labels)[:-1])
    held = range(len(rows)) if part is None else part
    labels = {"advantages": np.concatenate([numbers[row] for row in held])}
    columns = Columns({**labels, "weights": np.full(len(labels["advantages"]), 1 / rows.labels.sum())})
    result = engine.train_batch(rows.select(held), columns, Objective(loss), Update(1, 0, 1))
    return result.loss, flat(engine).cpu()


@pytest.mark.parametrize(("head", "config"), [("vocabulary", CONFIG), ("value", CONFIG), ("vocabulary", gpt2_config())])
@pytest.mark.parametrize("micro_batch_tokens", [1, 40, 1000])
def test_an_update_equals_that_of_rows_with_a_prompt_of_their_own(head, config, micro_batch_tokens, device):
    expected, parameters = trained(APART, head, config=config)
    found, moved = trained(SHARING, head, micro_batch_tokens=micro_batch_tokens, device=device, config=config)
    assert found == pytest.approx(expected, rel=0, abs=1e-12)
    torch.testing.assert_close(moved, parameters, rtol=0, atol=1e-12)


def on_two_ranks(context, split):
    return trained(SHARING, "vocabulary", everyone(context), 60, split[context.rank])


def test_an_update_is_the_same_where_two_ranks_hold_responses_to_one_prompt():
    expected, parameters = trained(APART, "vocabulary")
    with gloo_pool(2) as pool:
        for found, moved in pool.run(on_two_ranks, ([0, 1, 5, 9, 12], [2, 3, 4, 6, 7, 8, 10, 11])):
            assert found == pytest.approx(expected, rel=0, abs=1e-12)
            torch.testing.assert_close(moved, parameters, rtol=0, atol=1e-12)


def test_the_model_reads_a_shared_prompt_once(monkeypatch):
    engine, read = native(optimizer=None), []
    model = engine._model.transformer
    whole = model.forward
    monkeypatch.setattr(
        model, "forward", lambda tokens, *rest, **more: read.append(len(tokens)) or whole(tokens, *rest, **more)
    )
    engine.forward(SHARING)
    engine.forward(APART)
    assert read == [23 + 9 + 14 + 30 + 2 * 3 + int(SHARING.labels.sum()) - 13, int((SHARING.lengths - 1).sum())]

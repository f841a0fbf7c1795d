"""Training by the native backend: the same for any split, and against plain autograd."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.pool import everyone, gloo_pool
from support.tiny import CONFIG, OPTIMIZER, flat, native, random_sequences
from support.tiny_models import logits_of, tiny_model

from hpcrl.algos.functional.losses import Denominators, clipped_loss, counted, token_ratio, token_weights, value_loss
from hpcrl.config.model import OptimizerConfig
from hpcrl.engines.engine import KINDS, Columns, Decision, Objective, Predictions, Update
from hpcrl.errors import InternalError
from hpcrl.models.init import random_init
from hpcrl.models.packing import Packing

COUNT = 11
WHOLE = random_sequences(COUNT)
SPLITS = [([*range(COUNT)], []), ([0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9]), ([10, 3], [0, 1, 2, 4, 5, 6, 7, 8, 9])]


@pytest.fixture(scope="module")
def pool():
    with gloo_pool(2) as ranks:
        yield ranks


def columns_of(sequences, rows):
    """Weights of a mean over all sequences, and a number for each label."""
    bounds = torch.from_numpy(np.cumsum([0, *sequences.labels[rows]], dtype=np.int64))
    mask, whole = torch.ones(int(bounds[-1])), Denominators(int(WHOLE.labels.sum()), COUNT)
    return Columns(
        {
            "weights": token_weights("seq-mean-token-mean", mask, bounds, whole).numpy(),
            "mask": mask.numpy(),
            "advantages": np.concatenate([np.sin(np.arange(sequences.labels[row]) + row) for row in rows] or [[]]),
            "old": np.concatenate([np.full(sequences.labels[row], -3.0) for row in rows] or [[]]),
        }
    )


def changed(**labels):
    return Columns({**columns_of(WHOLE, range(COUNT)).labels, **labels})


def policy(predictions, columns):
    terms = clipped_loss(token_ratio(predictions.log_probs, columns["old"]), columns["advantages"], 0.2, 0.2)
    loss = terms.loss - 0.01 * predictions.entropy
    return (columns["weights"] * loss).sum(), {
        "ratio": counted(terms.ratio, columns["mask"]),
        "clipped": counted(terms.clipped, columns["mask"]),
    }


def values(predictions, columns):
    loss, clipped = value_loss(predictions.values, columns["old"], columns["advantages"], clip=0.5)
    return (columns["weights"] * loss).sum(), {"clipped": counted(clipped, columns["mask"])}


OBJECTIVES = {"vocabulary": Objective(policy, temperature=0.8, with_entropy=True), "value": Objective(values)}
FIRST = Update(1, 0, 1)


def train(engine, rows, head, updates=3):
    results = [
        engine.train_batch(WHOLE.select(rows), columns_of(WHOLE, rows), OBJECTIVES[head], Update(1, index, updates))
        for index in range(updates)
    ]
    return results, flat(engine).clone()


def numbers(result):
    """The loss, and every statistic's sum and weight."""
    return [result.loss, *(number for _, pair in sorted(result.totals.items()) for number in pair)]


def on_two_ranks(context, split, head, micro_batch_tokens):
    engine = native(head, group=everyone(context), micro_batch_tokens=micro_batch_tokens)
    results, flat = train(engine, split[context.rank], head)
    return [(numbers(result), result.grad_norm) for result in results], flat, engine.digest(), engine.snapshot()


@pytest.mark.parametrize("head", ["vocabulary", "value"])
def test_any_micro_batches_on_any_device_give_the_same_loss_and_parameters_in_float64(head, device):
    """Catches gradients that are not scaled to the mini-batch."""
    expected, parameters = train(native(head), range(COUNT), head)
    # Positions turn by angles in fp32, of which a GPU rounds the cosines otherwise.
    rel, exact = (1e-9, 1e-12) if device == "cpu" else (1e-5, 1e-6)
    for micro_batch_tokens in (1, 30, 77):
        engine = native(head, micro_batch_tokens=micro_batch_tokens, device=device)
        results, got = train(engine, range(COUNT), head)
        for result, reference in zip(results, expected, strict=True):
            assert numbers(result) == pytest.approx(numbers(reference), rel=rel, abs=exact)
            assert result.grad_norm == pytest.approx(reference.grad_norm, rel=rel)
        torch.testing.assert_close(got.cpu(), parameters, rtol=rel, atol=10 * exact)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("head", ["vocabulary", "value"])
def test_any_split_over_ranks_gives_the_same_loss_and_parameters_in_float64(pool, head, split):
    expected, parameters = train(native(head), range(COUNT), head)
    first, second = pool.run(on_two_ranks, split, head, 50)
    for (found, norm), reference in zip(first[0], expected, strict=True):
        assert found == pytest.approx(numbers(reference), rel=1e-9, abs=1e-12)
        assert norm == pytest.approx(reference.grad_norm, rel=1e-9)
    torch.testing.assert_close(first[1], parameters, rtol=1e-9, atol=1e-11)
    assert torch.equal(first[1], second[1])
    assert first[2] == second[2]


def test_loss_and_gradient_equal_plain_autograd():
    rows, model = list(range(COUNT)), tiny_model(CONFIG, dtype=torch.float64)
    columns = {name: torch.from_numpy(column) for name, column in columns_of(WHOLE, rows).labels.items()}
    log_probs, entropies, end = [], [], 0
    for length, labels in zip(WHOLE.lengths.tolist(), WHOLE.labels.tolist(), strict=True):
        tokens = torch.from_numpy(WHOLE.tokens[end : end + length]).long()
        end += length
        logits = logits_of(model, model.hidden(tokens, Packing.of([length])))[length - labels - 1 : length - 1] / 0.8
        table = logits.log_softmax(-1)
        log_probs.append(table.gather(-1, tokens[-labels:, None])[:, 0])
        entropies.append(-(table.exp() * table).sum(-1))
    loss, _ = policy(Predictions(torch.cat(log_probs), torch.cat(entropies), torch.zeros(0), torch.zeros(1)), columns)
    loss.backward()
    results, _ = train(native(), rows, "vocabulary", updates=1)
    assert results[0].loss == pytest.approx(loss.item(), rel=1e-9)
    assert results[0].grad_norm == pytest.approx(model.memory.grad.norm().item(), rel=1e-9)


def test_a_refused_mini_batch_changes_nothing_at_all():
    """Catches an early stop that zeroes the loss but steps: momentum and weight decay would still move parameters."""
    engine, seen = native(), []
    train(engine, range(COUNT), "vocabulary")
    before, digest = flat(engine).clone(), engine.digest()
    objective = replace(OBJECTIVES["vocabulary"], refuses=lambda means: not seen.append(dict(means)))
    result = engine.train_batch(WHOLE, columns_of(WHOLE, range(COUNT)), objective, FIRST)
    assert result.decision == Decision("refused", OPTIMIZER.lr)
    assert result.grad_norm is None
    assert seen == [{name: total / weight for name, (total, weight) in result.totals.items()}]
    assert torch.equal(flat(engine), before)
    assert engine.digest() == digest


def test_an_accepted_mini_batch_equals_one_that_nobody_judges():
    judged, free = native(), native()
    for engine, refuses in ((judged, lambda means: False), (free, None)):
        engine.train_batch(
            WHOLE, columns_of(WHOLE, range(COUNT)), replace(OBJECTIVES["vocabulary"], refuses=refuses), FIRST
        )
    assert judged.digest() == free.digest()


def test_what_was_decided_is_followed_and_nothing_is_judged():
    """Catches a replay that asks its own schedule or its own objective."""
    first, again = native(), native(optimizer=OptimizerConfig(lr=9.0, weight_decay=0.1))
    stubborn = replace(OBJECTIVES["vocabulary"], refuses=lambda means: True)
    columns = columns_of(WHOLE, range(COUNT))
    for engine, objective, decided in (
        (first, OBJECTIVES["vocabulary"], None),
        (again, stubborn, Decision("stepped", OPTIMIZER.lr)),
    ):
        assert engine.train_batch(WHOLE, columns, objective, FIRST, decided).decision.lr == OPTIMIZER.lr
    assert again.digest() == first.digest()
    before = first.digest()
    refused = first.train_batch(WHOLE, columns, OBJECTIVES["vocabulary"], FIRST, Decision("refused", 0.0))
    assert (refused.grad_norm, first.digest()) == (None, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_saved_state_continues_bit_for_bit(dtype, device):
    engine, other = (native(dtype=dtype, device=device) for _ in range(2))
    train(engine, range(COUNT), "vocabulary")
    other.load([copy.deepcopy(engine.snapshot())])
    assert other.digest() == engine.digest()
    results = [train(each, range(COUNT), "vocabulary") for each in (engine, other)]
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
    assert other.digest() == engine.digest()


def continue_on_two_ranks(context, split, shards):
    engine = native(group=everyone(context))
    engine.load(shards)
    return train(engine, split[context.rank], "vocabulary")[1]


def test_a_checkpoint_of_two_ranks_continues_on_one_and_back(pool):
    split = SPLITS[1]
    on_two = pool.run(on_two_ranks, split, "vocabulary", 50)
    shards = [state for *_, state in on_two]
    alone = native()
    alone.load(shards)
    assert torch.equal(flat(alone), on_two[0][1])
    assert alone.digest() == on_two[0][2]
    whole = alone.snapshot()
    torch.testing.assert_close(
        pool.run(continue_on_two_ranks, split, [whole])[0],
        train(alone, range(COUNT), "vocabulary")[1],
        rtol=1e-9,
        atol=1e-11,
    )


def test_a_checkpoint_of_another_model_is_refused():
    with pytest.raises(InternalError, match=r"Put the model back that actor.path had"):
        native().load([native("value").snapshot()])


def test_bf16_trains_with_fp32_masters_and_gradients(device):
    engine = native(dtype=torch.bfloat16, device=device)
    results, flat = train(engine, range(COUNT), "vocabulary", updates=20)
    assert flat.dtype == torch.bfloat16
    assert engine.snapshot().arrays["master"].dtype == np.float32
    assert results[-1].loss < results[0].loss


def test_norms_and_biases_have_no_weight_decay():
    engine = native("value", optimizer=replace(OPTIMIZER, lr=0.5))
    flat(engine).uniform_(0.5, 1.5)
    before = {name: view.detach().clone() for name, view in engine._model.transformer.views.items()}
    nothing = changed(weights=np.zeros(int(WHOLE.labels.sum())))
    assert engine.train_batch(WHOLE, nothing, OBJECTIVES["value"], FIRST).grad_norm == 0.0
    assert {len(parameter.shape) for parameter in before.values()} == {1, 2}
    for name, parameter in engine._model.transformer.views.items():
        shrunk = 1.0 - 0.5 * OPTIMIZER.weight_decay if parameter.dim() > 1 else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * shrunk, rtol=1e-12, atol=0, msg=name)


def as_in_a_file():
    """Every parameter in fp32; matrices as the transposed views that reading gives."""
    for name, tensor in random_init(CONFIG, seed=4):
        yield name, tensor.t().contiguous().t() if tensor.dim() == 2 else tensor


def loaded(context):
    engine = native(dtype=torch.bfloat16, group=everyone(context))
    engine.fill(as_in_a_file())
    return flat(engine), engine.snapshot()


def test_masters_of_a_bf16_model_begin_as_the_file_has_them_on_any_number_of_ranks(pool):
    alone = native(dtype=torch.bfloat16)
    alone.fill(as_in_a_file())
    exact = native(dtype=torch.float32)
    exact.fill(as_in_a_file())
    masters, rounded = alone.snapshot().arrays, flat(alone)
    assert torch.equal(torch.from_numpy(masters["master"]), flat(exact))
    assert torch.equal(rounded, flat(exact).bfloat16())
    on_ranks = pool.run(loaded)
    assert all(torch.equal(of_rank, rounded) for of_rank, _ in on_ranks)
    slices = np.concatenate([shard.arrays["master"] for _, shard in on_ranks])
    assert np.array_equal(slices, masters["master"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_released_memory_is_free_comes_back_and_trains_on_bit_for_bit(dtype, device):
    engine, other = (native(dtype=dtype, device=device) for _ in range(2))
    for each in (engine, other):
        train(each, range(COUNT), "vocabulary")
    engine.release(dict.fromkeys(KINDS, "host"))
    memory, optimizer = engine._model.transformer.memory, engine._training._optimizer
    for held in (memory.data, memory.grad, optimizer.master_S, optimizer.first_S, optimizer.second_S):
        assert held.untyped_storage().nbytes() == 0
    assert engine.held() == dict.fromkeys(KINDS, 0)
    assert torch.equal(train(engine, range(COUNT), "vocabulary")[1], train(other, range(COUNT), "vocabulary")[1])


def spoiled(engine, decided=None, bad=np.nan):
    columns = columns_of(WHOLE, range(COUNT))
    columns.labels["advantages"][3] = bad
    return engine.train_batch(WHOLE, columns, OBJECTIVES["vocabulary"], FIRST, decided)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_update_without_a_finite_gradient_is_skipped_and_changes_nothing(bad):
    engine = native()
    before = engine.digest()
    assert spoiled(engine, bad=bad).decision == Decision("skipped", OPTIMIZER.lr) and engine.digest() == before
    followed = engine.train_batch(
        WHOLE, columns_of(WHOLE, range(COUNT)), OBJECTIVES["vocabulary"], FIRST, Decision("skipped", 0.1)
    )
    assert (followed.decision.outcome, followed.grad_norm) == ("skipped", None) and engine.digest() == before
    with pytest.raises(InternalError, match="actor: the gradient of update 0 has norm nan in a replay, and was finite"):
        spoiled(engine, Decision("stepped", 0.1))


def test_too_many_skipped_updates_in_a_row_end_the_run_whoever_counted_the_first_ones():
    few = replace(OPTIMIZER, max_skipped=2)
    engine = native(optimizer=few)
    spoiled(engine)
    train(engine, range(COUNT), "vocabulary", updates=1)
    for _ in range(2):
        spoiled(engine)
    resumed = native(optimizer=few)
    resumed.load([engine.snapshot()])
    for each in (engine, resumed):
        with pytest.raises(InternalError) as raised:
            spoiled(each)
        assert str(raised.value) == (
            "actor: 3 updates in a row had a gradient that is not finite, and actor.optimizer.max_skipped = 2 may be "
            "skipped. Raise actor.optimizer.max_skipped; or, where the model has diverged, begin from a checkpoint "
            "before that: `hpcrl fork RUN --step N`, with a lower actor.optimizer.lr or actor.optimizer.grad_clip."
        )

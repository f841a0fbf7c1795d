"""The training loop where not everything counts and samples have several rows: the same for any split."""

import numpy as np
import pytest
import torch
from support.pool import everyone, gloo_pool
from support.tiny import ALONE, flat, native, random_rows

from hpcrl.algos.functional.losses import counted
from hpcrl.algos.functional.sequences import sequence_sums
from hpcrl.algos.training import Training
from hpcrl.config.model import OptimizerConfig
from hpcrl.data.batch import Batch
from hpcrl.data.samples import SequenceSample
from hpcrl.engines.engine import Columns, Objective, Sequences
from hpcrl.workers.host import Work

ROWS = [2, 1, 3, 2, 2, 1, 4, 2]
"""Of each sample."""
IDS = tuple(f"{i}@0" for i in range(len(ROWS)))
MINIBATCHES = (IDS[:5], IDS[5:])
PROMPTS, RESPONSES = random_rows(sum(ROWS), seed=3)
SAMPLES = np.repeat(np.arange(len(ROWS)), ROWS)
MASKS = [np.sin(np.arange(len(response)) * 1.7 + row) > -0.4 for row, response in enumerate(RESPONSES)]
MASKS[1][:] = False  # a row of which nothing counts
COUNTED = SAMPLES != 3
OPTIMIZER = OptimizerConfig(lr=0.02, eps=1.0, weight_decay=0.1, grad_clip=0.0)
SPLITS = [(range(8), ()), ((0, 3, 6), (7, 5, 4, 2, 1)), ((5,), (0, 1, 2, 3, 4, 6, 7)), ((3,), (7, 6, 5, 4, 2, 1, 0))]


@pytest.fixture(scope="module")
def pool():
    with gloo_pool(2) as ranks:
        yield ranks


def loss(predictions, columns):
    """One term a token, one a row, and a statistic of each kind."""
    log_probs, mask = predictions.log_probs, columns["mask"]
    of_rows = sequence_sums(mask * log_probs, predictions.cu_labels).square() * columns["advantages"]
    weighted = (columns["weights"] * log_probs).sum() + (columns["row_weights"] * of_rows).sum()
    held = (columns["row_weights"] > 0).to(mask)
    return weighted, {
        "log_prob": counted(log_probs.detach(), mask),
        "of_rows": counted(of_rows.detach(), held),
    }


def advantages(rows):
    return Columns(rows={"advantages": np.array([0.1 * (row % 3) - 0.1 for row in rows])})


def trained(samples, group=ALONE, micro_batch_tokens=1000, aggregation="token-mean", counts=COUNTED, record=None):
    """Two passes over two mini-batches, of which these samples are held."""
    engine = native(group=group, micro_batch_tokens=micro_batch_tokens, optimizer=OPTIMIZER)
    rows = [row for sample in samples for row in np.flatnonzero(sample == SAMPLES)]
    sequences = Sequences.from_rows(
        [PROMPTS[row] for row in rows],
        [RESPONSES[row] for row in rows],
        samples=np.repeat(np.arange(len(samples)), [ROWS[sample] for sample in samples]),
        counted=[counts[row] for row in rows],
        mask=[MASKS[row] for row in rows],
    )
    batch = SequenceSample.from_rows([IDS[i] for i in samples], {"none": [np.zeros(1)] * len(samples)})
    work = Work(1, "train", 0, batch, MINIBATCHES, record)
    training = Training(engine, work, Batch(rows=8, minibatches=2, passes=2), Objective(loss), aggregation, 20.0)
    training.run(sequences, advantages(rows))
    return training.stats(), training.record(), flat(engine).clone(), engine.digest()


def on_two_ranks(context, split, micro_batch_tokens, counts=COUNTED):
    return trained(tuple(split[context.rank]), everyone(context), micro_batch_tokens, counts=counts)


def check_alike(found, expected):
    for name, numbers in expected[0].items():
        assert found[0][name] == pytest.approx(numbers, rel=1e-12, abs=1e-12), name
    torch.testing.assert_close(found[2], expected[2], rtol=0, atol=1e-12)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_any_micro_batches_give_the_same_numbers_where_not_everything_counts(aggregation):
    expected = trained(range(8), aggregation=aggregation)
    for micro_batch_tokens in (1, 40, 90):
        check_alike(trained(range(8), aggregation=aggregation, micro_batch_tokens=micro_batch_tokens), expected)


@pytest.mark.parametrize("split", SPLITS)
def test_any_split_over_ranks_gives_the_same_numbers_where_not_everything_counts(pool, split):
    expected = trained(range(8))
    first, second = pool.run(on_two_ranks, split, 60)
    check_alike(first, expected)
    assert first[3] == second[3] and first[0] == second[0]


def test_what_does_not_count_has_no_part_in_loss_denominators_and_statistics():
    """Against numbers made of the tokens that count alone."""
    engine, kept = native(optimizer=OPTIMIZER), [row for row in range(sum(ROWS)) if COUNTED[row] and MASKS[row].any()]
    everything = Sequences.from_rows(PROMPTS, RESPONSES)
    log_probs = np.split(engine.forward(everything).astype(float), np.cumsum(everything.labels)[:-1])
    counting = [log_probs[row][MASKS[row]] for row in kept]
    of_rows = advantages(kept).rows["advantages"] * [numbers.sum() ** 2 for numbers in counting]
    batch = SequenceSample.from_rows(IDS, {"none": [np.zeros(1)] * 8})
    training = Training(
        engine, Work(1, "train", 0, batch, (IDS,)), Batch(rows=8), Objective(loss), "seq-mean-token-mean"
    )
    training.run(
        Sequences.from_rows(PROMPTS, RESPONSES, samples=SAMPLES, counted=COUNTED, mask=MASKS),
        advantages(range(sum(ROWS))),
    )
    stats = training.stats()
    assert stats["loss"][0] == pytest.approx(np.mean([part.mean() for part in counting]) + of_rows.mean(), rel=1e-6)
    assert stats["log_prob"] == pytest.approx((np.concatenate(counting).sum(), sum(map(len, counting))), rel=1e-6)
    assert stats["of_rows"] == pytest.approx((of_rows.sum(), len(kept)), rel=1e-6)


def test_a_mini_batch_in_which_nothing_counts_is_left_out_by_all_ranks_and_in_a_replay(pool):
    """Catches a division by zero, and an update that moves parameters by momentum and weight decay alone."""
    counts = SAMPLES >= 5
    stats, record, parameters, digest = trained(range(8), counts=counts)
    assert record["outcomes"] == ["empty", "stepped", "empty", "stepped"] and stats["skipped"] == (0.0, 1.0)
    assert all(np.isfinite(number) for pair in stats.values() for number in pair)
    assert trained(range(8), counts=counts, record=record)[3] == digest
    first, second = pool.run(on_two_ranks, SPLITS[1], 60, counts)
    torch.testing.assert_close(first[2], parameters, rtol=0, atol=1e-12)
    assert first[1]["outcomes"] == record["outcomes"] and first[3] == second[3]
    nothing = trained(range(8), counts=SAMPLES > 99)
    assert nothing[0] == {"skipped": (0.0, 1.0)}
    assert torch.equal(nothing[2], flat(native(optimizer=OPTIMIZER)))

"""Batches of an epoch, against cutting one row after another."""

import itertools

import numpy as np
import pytest

from hpcrl.data.cutting import Balanced, ByRows, ByTokens, Cutting, Epoch
from hpcrl.data.order import SampleOrder, row_of

LENGTHS = np.random.default_rng(1).lognormal(4, 0.8, 500).astype(np.int64) + 1
ORDER = np.random.default_rng(2).permutation(500)


def batches(epoch: Epoch) -> list[list[int]]:
    """The places of the rows of each batch, from the ends."""
    found, at = [], 0
    while (end := epoch.end(at)) > at:
        found.append(epoch.order[at:end].tolist())
        at = end
    assert len(found) == epoch.batches()
    return found


@pytest.mark.parametrize("budget", [1, 300, 2000, int(LENGTHS.sum())])
def test_a_batch_has_as_many_rows_as_fit_the_budget_and_at_least_one(budget: int) -> None:
    expected: list[list[int]] = []
    for row in ORDER.tolist():
        if expected and LENGTHS[[*expected[-1], row]].sum() <= budget:
            expected[-1].append(row)
        else:
            expected.append([row])
    assert batches(ByTokens(budget, LENGTHS).cut(ORDER)) == expected
    kept = batches(ByTokens(budget, LENGTHS, drop_last=True).cut(ORDER))
    whole = LENGTHS[expected[-1]].sum() >= budget
    assert kept == (expected if whole else expected[:-1])


def test_a_batch_by_tokens_can_be_cut_from_any_row_on() -> None:
    epoch = ByTokens(700, LENGTHS).cut(ORDER)
    for begin in range(0, 500, 7):
        end = epoch.end(begin)
        assert LENGTHS[ORDER[begin:end]].sum() <= 700 or end == begin + 1
        assert end == 500 or LENGTHS[ORDER[begin : end + 1]].sum() > 700
    assert epoch.end(500) == 500


@pytest.mark.parametrize("size", [16, 25, 40, 500])
def test_balanced_batches_have_nearly_equally_many_tokens_the_first_the_longest_row(size: int) -> None:
    found = batches(Balanced(size, LENGTHS).cut(ORDER))
    assert sorted(itertools.chain(*found)) == list(range(500))
    assert len(found) == -(-500 // size) and max(map(len, found)) <= size
    tokens = [int(LENGTHS[batch].sum()) for batch in found]
    assert LENGTHS[found[0]].max() == LENGTHS.max()
    assert tokens[1:] == sorted(tokens[1:], reverse=True)
    of_order = [int(LENGTHS[ORDER[i : i + size]].sum()) for i in range(0, 500, size)]
    assert max(tokens) <= 1.05 * LENGTHS.sum() / len(found) and max(tokens) <= max(of_order)


def test_balanced_batches_without_a_smaller_one_leave_out_the_last_rows_of_the_order() -> None:
    epoch = Balanced(32, LENGTHS, drop_last=True).cut(ORDER)
    found = batches(epoch)
    assert {len(batch) for batch in found} == {32} and len(found) == 15
    assert set(itertools.chain(*found)) == set(ORDER[:480].tolist())
    assert epoch.end(480) == 480 and sorted(epoch.order.tolist()) == list(range(500))


def test_balanced_batches_of_two_epochs_are_other_batches_though_all_lengths_differ() -> None:
    lengths, rows = np.arange(100, 164), [f"r{i}" for i in range(64)]
    order = SampleOrder(rows, Balanced(8, lengths), seed=1)
    epochs = [{frozenset(map(row_of, order.batch_at(64 * e + 8 * i).ids)) for i in range(8)} for e in range(2)]
    assert all(set(itertools.chain(*epoch)) == set(rows) for epoch in epochs) and not epochs[0] & epochs[1]


@pytest.mark.parametrize("cutting", [ByTokens(700, LENGTHS), Balanced(32, LENGTHS), ByTokens(700, LENGTHS, True)])
def test_a_step_can_be_asked_for_again_from_its_cursor(cutting: Cutting) -> None:
    rows = [f"r{i}" for i in range(500)]
    straight, cursors, steps = SampleOrder(rows, cutting, seed=3), [0], []
    while steps[-1:] == [] or steps[-1].epoch < 2:
        steps.append(straight.batch_at(cursors[-1]))
        cursors.append(steps[-1].next_cursor)
    for i in np.random.default_rng(0).permutation(len(steps)).tolist():
        assert SampleOrder(rows, cutting, seed=3).batch_at(cursors[i]) == steps[i]
    assert [step.ends_epoch for step in steps].count(True) == 2
    assert straight.batches(2) == len(steps) - 1
    seen = [sample for step in steps for sample in step.ids if sample.endswith("@1")]
    assert len(seen) == len(set(seen)) and len(seen) > 480


def test_an_epoch_by_rows_has_as_many_batches_as_are_cut() -> None:
    for size, drop_last in itertools.product((1, 7, 100, 500), (False, True)):
        cutting = ByRows(size, drop_last)
        assert len(batches(cutting.cut(ORDER))) == cutting.batches(500)

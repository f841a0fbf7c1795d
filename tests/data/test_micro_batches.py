import numpy as np

from hpcrl.data.micro_batches import micro_batches


def test_micro_batches_hold_each_row_once_within_the_bound():
    lengths = np.array([5, 9, 3, 30, 9, 1])
    batches = list(micro_batches(lengths, 14))
    assert sorted(row for batch in batches for row in batch) == list(range(6))
    assert batches[0] == [3]
    assert all(lengths[batch].sum() <= 14 for batch in batches[1:])


def test_no_rows_make_no_batch():
    assert list(micro_batches(np.zeros(0, np.int64), 14)) == []

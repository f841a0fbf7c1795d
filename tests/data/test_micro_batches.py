import numpy as np

from hpcrl.data import micro_batches as cut


def micro_batches(lengths, samples, tokens, prompts=None, numbers=None):
    """Where nothing else is said, no prompt is shared."""
    nothing = np.zeros(len(lengths), np.int64)
    own = np.arange(len(lengths))
    given = (nothing if prompts is None else prompts, own if numbers is None else numbers)
    return cut.micro_batches(lengths, samples, *given, tokens)


def test_micro_batches_hold_each_row_once_within_the_bound():
    lengths = np.array([5, 9, 3, 30, 9, 1])
    batches = list(micro_batches(lengths, np.arange(6), 14))
    assert sorted(row for batch in batches for row in batch) == list(range(6))
    assert batches[0] == [3]
    assert all(lengths[batch].sum() <= 14 for batch in batches[1:])


def test_no_rows_make_no_batch():
    assert list(micro_batches(np.zeros(0, np.int64), np.zeros(0, np.int64), 14)) == []


def test_a_sample_is_never_parted_and_one_larger_than_the_bound_stands_alone():
    lengths, samples = np.array([3, 4, 6, 6, 6, 2, 2, 5]), np.array([7, 7, 2, 2, 2, 9, 9, 4])
    assert list(micro_batches(lengths, samples, 12)) == [[2, 3, 4], [0, 1, 7], [5, 6]]
    assert list(micro_batches(lengths, samples, 1)) == [[2, 3, 4], [0, 1], [7], [5, 6]]


def test_where_each_sample_has_one_row_the_longest_come_first_and_equal_lengths_stand_together():
    lengths = np.array([5, 9, 3, 9, 5])
    assert list(micro_batches(lengths, np.arange(5), 19)) == [[1, 3], [0, 4, 2]]


def test_rows_of_one_prompt_go_together_and_its_tokens_count_once():
    lengths = np.array([12, 30, 14, 13, 31, 11])
    numbers, prompts = np.array([0, 1, 0, 0, 1, 0]), np.array([10, 25, 10, 10, 25, 10])
    found = list(micro_batches(lengths, np.arange(6), 36, prompts, numbers))
    assert found == [[4, 1], [2, 3, 0, 5]]  # 31 + 5 tokens, and 14 + 3 + 2 + 1
    assert list(micro_batches(lengths, np.arange(6), 18, prompts, numbers)) == [[4], [1], [2, 3], [0, 5]]


def test_both_sides_of_a_pair_count_their_prompt_once():
    lengths, samples = np.array([12, 13, 12, 14]), np.array([0, 0, 1, 1])
    found = list(micro_batches(lengths, samples, 31, np.full(4, 10), np.array([0, 0, 2, 2])))
    assert found == [[2, 3, 0, 1]]
    assert list(micro_batches(lengths, samples, 30, np.full(4, 10), np.array([0, 0, 2, 2]))) == [[2, 3], [0, 1]]

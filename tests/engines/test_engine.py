"""Packed sequences on the host."""

import numpy as np
import pytest

from hpcrl.engines.engine import Sequences, take_rows


def arrays(*rows):
    return [np.array(row, np.int32) for row in rows]


def test_rows_are_packed_prompt_before_response():
    sequences = Sequences.from_rows(arrays([1, 2], [3]), arrays([4], [5, 6]))
    assert sequences.tokens.tolist() == [1, 2, 4, 3, 5, 6]
    assert sequences.lengths.tolist() == [3, 3]
    assert sequences.labels.tolist() == [1, 2]


def test_selected_rows_come_in_the_order_asked_for():
    sequences = Sequences.from_rows(arrays([1, 2], [3], [7]), arrays([4], [5, 6], [8, 9]))
    picked = sequences.select([2, 0])
    assert picked.tokens.tolist() == [7, 8, 9, 1, 2, 4]
    assert picked.labels.tolist() == [2, 1]
    assert len(sequences.select([])) == 0
    assert take_rows(np.arange(5), np.array([2, 0, 3]), [2, 1]).tolist() == [2, 3, 4]


@pytest.mark.parametrize(("prompt", "response"), [([], [1]), ([1], [])])
def test_a_sequence_without_prompt_or_label_is_refused(prompt, response):
    with pytest.raises(ValueError, match="sequence 1 of 1 tokens has"):
        Sequences.from_rows(arrays([1], prompt), arrays([1], response))


def test_tokens_that_do_not_fit_the_lengths_are_refused():
    with pytest.raises(ValueError, match="add up to 3"):
        Sequences(np.zeros(2, np.int32), np.array([3]), np.array([1]))

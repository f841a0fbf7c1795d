"""Rows cut into texts that share prompts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.data.prefixes import LEAST_SHARED, cut_rows, prompt_numbers


def packed(*rows):
    return np.concatenate([np.array(row, np.int32) for row in rows]), np.array([len(row) for row in rows])


LONG = [*range(10, 10 + LEAST_SHARED)]


def test_rows_with_one_prompt_have_one_number_and_short_prompts_are_not_shared():
    tokens, lengths = packed([*LONG, 1], [1, 2, 3], [*LONG, 4, 5], [1, 2, 4], [*LONG, 6, 7])
    prompts = np.array([len(LONG), 2, len(LONG), 2, len(LONG) + 1])
    assert prompt_numbers(tokens, lengths, prompts).tolist() == [0, 1, 0, 3, 4]


def test_a_shared_prompt_is_read_once_and_its_last_token_predicts_first_labels():
    tokens, lengths = packed([*LONG, 1, 2], [7, 8, 9], [*LONG, 3], [*LONG, 4, 5, 6])
    count = len(LONG)
    texts = cut_rows(lengths, np.array([count, 1, count, count]), [0, 1, 0, 0])
    assert texts.inputs(tokens, lengths).tolist() == [*LONG, 1, 7, 8, 4, 5]
    assert texts.lengths == [count, 1, 2, 2]
    assert texts.prefixes == [-1, 0, -1, 0]
    labels = np.array([2, 1, 1, 3])
    assert texts.label_rows(lengths, labels).tolist() == [
        *(count - 1, count),
        count + 2,
        count - 1,
        *(count - 1, count + 3, count + 4),
    ]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(1, 6)), min_size=1, max_size=9))
def test_every_label_is_predicted_after_the_tokens_that_stand_before_it_in_its_row(rows):
    """Whatever prompts are shared: what a label's row of inputs has read, with its prefixes, is its row up to it."""
    made = [
        ([*LONG, 90 + prompt], [*range(100 * i + 1, 100 * i + 1 + more)]) for i, (prompt, more, _) in enumerate(rows)
    ]
    tokens, lengths = packed(*([*prompt, *more, 0] for prompt, more in made))
    prompts = np.array([len(prompt) for prompt, _ in made])
    labels = np.array([min(count, len(more) + 1) for (_, more), (*_, count) in zip(made, rows, strict=True)])
    texts = cut_rows(lengths, prompts, prompt_numbers(tokens, lengths, prompts))
    inputs, begins = texts.inputs(tokens, lengths), np.cumsum([0, *texts.lengths])
    assert len(inputs) == sum(len(more) for _, more in made) + sum(len(LONG) + 1 for _ in {row[0] for row in rows})

    def read(place):
        text = int(np.searchsorted(begins, place, "right")) - 1
        before = texts.prefixes[text]
        prefix = [] if before < 0 else inputs[begins[before] : begins[before + 1]].tolist()
        return prefix + inputs[begins[text] : place + 1].tolist()

    expected = [
        [*prompt, *more][: len(prompt) + len(more) - back]
        for (prompt, more), count in zip(made, labels, strict=True)
        for back in reversed(range(count))
    ]
    assert [read(place) for place in texts.label_rows(lengths, labels)] == expected


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_that_share_nothing_are_whole(rows):
    lengths = np.array([5, 3, 9][:rows])
    texts = cut_rows(lengths, lengths - 1, range(rows))
    assert texts.lengths == (lengths - 1).tolist() and texts.prefixes == [-1] * rows

"""Packed sequences on the host."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.tiny import CONFIG, native
from support.tiny_models import tiny_model

from hpcrl.engines.engine import Columns, Sequences, take_rows
from hpcrl.models.packing import Packing


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
        replace(Sequences.from_rows(arrays([1, 2]), arrays([3])), tokens=np.zeros(2, np.int32))


def test_what_counts_follows_the_rows():
    """Catches a mask that stays where it was when rows are picked."""
    masks = [np.array(row, np.bool_) for row in ([1], [0, 1], [1, 0, 1])]
    sequences = Sequences.from_rows(
        arrays([1], [2], [3]),
        arrays([4], [5, 6], [7, 8, 9]),
        samples=[5, 5, 2],
        counted=[True, False, True],
        mask=masks,
    )
    assert sequences.counting.tolist() == [True, False, False, True, False, True]
    picked = sequences.select([2, 1])
    assert picked.samples.tolist() == [2, 5] and picked.counted.tolist() == [True, False]
    assert picked.mask.tolist() == [True, False, True, False, True]
    assert picked.counting.tolist() == [True, False, True, False, False]


def test_what_does_not_fit_the_sequences_is_refused():
    prompts, responses = arrays([1], [2], [3]), arrays([4], [5], [6])
    with pytest.raises(ValueError, match=r"of one sample must be neighbours; those here are of \[1, 2, 1\]"):
        Sequences.from_rows(prompts, responses, samples=[1, 2, 1])
    with pytest.raises(ValueError, match=r"counted has shape \(2,\); needed is \(3,\)"):
        Sequences.from_rows(prompts, responses, counted=[True, True])
    with pytest.raises(ValueError, match="weights is a column of labels and one of rows"):
        Columns({"weights": np.zeros(3)}, {"weights": np.zeros(3)})


def after_each_token(tokens):
    model = tiny_model(CONFIG.with_head("value"), dtype=torch.float64)
    return model.output.values(model.hidden(torch.from_numpy(tokens).long(), Packing.of([len(tokens)]))).detach()


@pytest.mark.parametrize("micro_batch_tokens", [1, 1000])
def test_the_value_after_a_text_equals_that_of_a_direct_forward_at_its_last_token(micro_batch_tokens):
    prompts, responses = arrays([1, 2], [3], [7, 1, 2]), arrays([4, 8, 8, 1], [5, 6], [])
    engine = native("value", optimizer=None, micro_batch_tokens=micro_batch_tokens)
    texts = [after_each_token(np.concatenate(row)) for row in zip(prompts, responses, strict=True)]
    scores = engine.forward(Sequences.from_rows(prompts, responses, labelled="after"))
    np.testing.assert_allclose(scores, [float(values[-1]) for values in texts], rtol=1e-6)
    both = engine.forward(Sequences.from_rows(prompts, responses, labelled="response and after"))
    expected = torch.cat([values[-len(row) - 1 :] for values, row in zip(texts, responses, strict=True)])
    np.testing.assert_allclose(both, expected, rtol=1e-6)


def test_predictions_say_where_the_labels_of_each_row_begin():
    sequences = Sequences.from_rows(arrays([1], [2, 3], [3]), arrays([4, 4], [5], [6, 6, 6]))
    model = native(optimizer=None)._model
    assert model.forward(sequences, 1.0, with_entropy=False).cu_labels.tolist() == [0, 2, 3, 6]
    assert model.nothing().cu_labels.tolist() == [0]

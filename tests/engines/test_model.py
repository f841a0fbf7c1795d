"""Predictions of packed micro-batches against one sequence at a time through plain logits."""

import numpy as np
import pytest
import torch
from support.tiny import CONFIG, native, random_sequences
from support.tiny_models import logits_of, tiny_model

from hpcrl.config.generation import GenerationConfig
from hpcrl.errors import InternalError
from hpcrl.models.packing import Packing


def one_at_a_time(sequences, head, temperature=1.0):
    """Log-probabilities or values from the whole sequence's hidden states."""
    model, numbers, end = tiny_model(CONFIG.with_head(head), dtype=torch.float64), [], 0
    for length, labels in zip(sequences.lengths, sequences.labels, strict=True):
        tokens = torch.from_numpy(sequences.tokens[end : end + length]).long()
        end += length
        hidden = model.hidden(tokens, Packing.of([int(length)]))
        if head == "value":
            numbers.append(model.output.values(hidden)[length - labels - 1 : length - 1])
            continue
        log_probs = (logits_of(model, hidden) / temperature).log_softmax(-1)[:-1].gather(-1, tokens[1:, None])[:, 0]
        numbers.append(log_probs[length - labels - 1 :])
    return torch.cat(numbers).detach().numpy()


@pytest.mark.parametrize("micro_batch_tokens", [1, 40, 1000])
@pytest.mark.parametrize(("head", "temperature"), [("vocabulary", 1.0), ("vocabulary", 0.7), ("value", 1.0)])
def test_packed_predictions_equal_one_sequence_at_a_time(head, temperature, micro_batch_tokens):
    sequences = random_sequences(13)
    got = native(head, micro_batch_tokens=micro_batch_tokens, optimizer=None).forward(sequences, temperature)
    np.testing.assert_allclose(got, one_at_a_time(sequences, head, temperature), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_numbers_are_in_the_models_precision_at_least_float32(dtype):
    engine, wide = native(dtype=dtype, optimizer=None), np.float64 if dtype == torch.float64 else np.float32
    assert engine.forward(random_sequences(3)).dtype == engine.forward(random_sequences(3).select([])).dtype == wide
    made = engine.generate([np.array([1, 2])], [0], GenerationConfig(max_new_tokens=6))
    assert made.logprobs[0].dtype == wide


def test_no_sequences_have_no_predictions():
    assert native(optimizer=None).forward(random_sequences(3).select([])).shape == (0,)


@pytest.mark.parametrize("greedy", [False, True])
def test_a_diverged_policy_is_an_error_that_names_the_role(greedy):
    engine = native(optimizer=None)
    engine._model.transformer.views["layers.1.down"].data[0, 0] = torch.nan
    with pytest.raises(InternalError, match=r"actor: (\d+) of \1 log-probabilities of sampled tokens are"):
        engine.generate([np.array([1, 2]), np.array([3])], [0, 1], GenerationConfig(max_new_tokens=6, greedy=greedy))


@pytest.mark.parametrize(("head", "what"), [("vocabulary", "log-probabilities"), ("value", "values")])
def test_predictions_that_are_not_finite_are_an_error_that_names_the_role(head, what):
    engine = native(head, optimizer=None)
    engine._model.transformer.views["layers.1.down"].data[0, 0] = torch.inf
    with pytest.raises(InternalError, match=rf"actor: \d+ of \d+ {what} are not finite"):
        engine.forward(random_sequences(3))


def test_released_memory_comes_back_bit_for_bit():
    engine, sequences = native(optimizer=None), random_sequences(4)
    before = engine.forward(sequences)
    engine.release({"parameters": "host"})
    assert engine.held() == {"parameters": 0, "gradients": 0, "optimizer": 0}
    assert np.array_equal(engine.forward(sequences), before)

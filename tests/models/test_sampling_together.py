"""Tokens that tensor ranks draw together, against one process with all logits, in float64."""

import numpy as np
import pytest
import torch
from support.cut_models import CONFIGS, cut_model
from support.pool import everyone, gloo_pool

from hpcrl.models.generation import GenerationOptions, Generator
from hpcrl.models.sampling import SamplingOptions, choose
from hpcrl.models.sampling_together import choose_together
from hpcrl.models.tensor_parallel import TensorParallel
from hpcrl.models.vocabulary import Vocabulary

OPTIONS = {
    "plain": SamplingOptions(),
    "temperature": SamplingOptions(temperature=0.6),
    "greedy": SamplingOptions(greedy=True),
    "top-k": SamplingOptions(top_k=3, temperature=1.3),
    "top-k of all": SamplingOptions(top_k=1000),
    "top-p": SamplingOptions(top_p=0.8),
    "both": SamplingOptions(top_k=20, top_p=0.7),
}
ROWS = 300


@pytest.fixture(scope="module", params=[2, 4])
def pool(request):
    with gloo_pool(request.param) as ranks:
        yield ranks


def drawn(size):
    """Logits, one row of which is not a number, and another has two largest; seeds and indices."""
    logits = 3 * torch.randn(ROWS, size, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
    logits[1, [0, size - 1]] = logits.max() + 1
    logits[2, size // 2] = torch.nan
    logits[3, 0] = -torch.inf
    logits[4, size // 4 :] = -torch.inf
    logits[5, :-1] = -torch.inf
    return logits, torch.arange(ROWS) * 7919, torch.arange(ROWS) % 5


def on_rank(context, name, size):
    vocabulary = Vocabulary(size, TensorParallel(everyone(context)))
    logits, seeds, index = drawn(size)
    own = logits[:, vocabulary.first : vocabulary.first + vocabulary.count]
    return choose_together(own, seeds, index, OPTIONS[name], vocabulary)


@pytest.mark.parametrize("size", [5, 64])
@pytest.mark.parametrize("name", OPTIONS)
def test_tokens_are_those_of_one_process(pool, name, size):
    logits, seeds, index = drawn(size)
    expected, logprobs = choose(logits, seeds, index, OPTIONS[name])
    sound = torch.arange(ROWS) != 2
    sound[1] = not OPTIONS[name].top_k  # which of equals torch finds is not said
    for tokens, found in pool.run(on_rank, name, size):
        assert tokens.dtype == torch.int64 and tokens[sound].tolist() == expected[sound].tolist()
        torch.testing.assert_close(found[sound], logprobs[sound], rtol=0, atol=1e-12)
        assert found[2].isnan()


def generated(model, name):
    draw = np.random.default_rng(2)
    prompts = [draw.integers(0, model.config.vocabulary_size, length) for length in (3, 7, 1, 3, 5)]
    prompts.append(prompts[1])
    options = GenerationOptions(
        max_new_tokens=6, min_new_tokens=2, sampling=OPTIONS[name], eos_token_ids=(1, 4), slots=4, prefill_tokens=9
    )
    return Generator(model, options).generate(prompts, range(6))


def generated_on_rank(context, config, name):
    return generated(cut_model(CONFIGS[config], everyone(context)), name)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ("odd vocabulary, tied", "plain"),
        ("1 kv head", "temperature"),
        ("qwen3", "greedy"),
        ("2 kv heads", "both"),
        ("gpt2", "top-p"),
        ("odd sizes", "top-k"),
    ],
)
def test_responses_are_those_of_one_process(pool, config, name):
    expected = generated(cut_model(CONFIGS[config]), name)
    for found in pool.run(generated_on_rank, config, name):
        for ours, theirs in zip(found.tokens, expected.tokens, strict=True):
            assert ours.tolist() == theirs.tolist()
        assert found.finished == expected.finished
        np.testing.assert_allclose(np.concatenate(found.logprobs), np.concatenate(expected.logprobs), atol=1e-6)

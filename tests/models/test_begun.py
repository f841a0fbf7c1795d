"""Responses that are drawn a few tokens at a time, each time by a new prefill, against those that are drawn at once."""

from functools import partial

import numpy as np
import pytest
import torch
from support.tiny_models import tiny_config, tiny_model
from support.tiny_tokenizer import train_tokenizer

from hpcrl.data.tokens import load_tokens
from hpcrl.families.config import DecoderConfig
from hpcrl.models.generation import GenerationOptions, Generator, Pace
from hpcrl.models.history import Generated
from hpcrl.models.sampling import SamplingOptions
from hpcrl.models.stopping import StopStrings

ROWS, NEW = 24, 18
EOS = (2, 7)
NOTHING = np.zeros(0, np.int32)
SAMPLING = {
    "sampled": {},
    "greedy": {"sampling": SamplingOptions(greedy=True)},
    "cut": {"sampling": SamplingOptions(temperature=0.9, top_k=20, top_p=0.8)},
    "late": {"min_new_tokens": 9},
    "few slots": {"slots": 5, "prefill_tokens": 30},
}


def some_prompts() -> list[np.ndarray]:
    """Each twice: what is begun of equal prompts differs."""
    numbers = np.random.default_rng(5)
    return [prompt for _ in range(ROWS // 2) for prompt in [numbers.integers(3, 60, numbers.integers(1, 9))] * 2]


def in_segments(generator: Generator, prompts: list[np.ndarray], most: int, size: int) -> Generated:
    """As one call: rows that have ended, or have all their tokens, are in no further segment."""
    tokens, logprobs, finished = [NOTHING] * len(prompts), [np.zeros(0)] * len(prompts), [False] * len(prompts)
    for until in range(size, most + size, size):
        rows = [row for row, ended in enumerate(finished) if not ended]
        if not rows:
            break
        made = generator.generate(
            [prompts[row] for row in rows], rows, [min(until, most)] * len(rows), [tokens[row] for row in rows]
        )
        for row, new, of_new, ended in zip(rows, *made, strict=True):
            tokens[row], logprobs[row] = np.append(tokens[row], new), np.append(logprobs[row], of_new)
            finished[row] = ended
    return Generated(tokens, logprobs, finished)


def assert_same(found: Generated, expected: Generated) -> None:
    assert [row.tolist() for row in found.tokens] == [row.tolist() for row in expected.tokens]
    assert found.finished == expected.finished
    for ours, theirs in zip(found.logprobs, expected.logprobs, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


def exact(config: DecoderConfig | None = None) -> torch.nn.Module:
    return tiny_model(config or tiny_config(), seed=1, dtype=torch.float64)


@pytest.mark.parametrize("options", SAMPLING.values(), ids=SAMPLING)
@pytest.mark.parametrize("size", [1, 5, 6])
def test_segments_equal_one_call(options: dict, size: int) -> None:
    generator = Generator(exact(), GenerationOptions(NEW, eos_token_ids=EOS, **options))
    whole = generator.generate(some_prompts(), range(ROWS))
    assert {False, True} == set(whole.finished)
    assert_same(in_segments(generator, some_prompts(), NEW, size), whole)


@pytest.mark.parametrize("late", [0, 1, 3])
def test_segments_equal_one_call_where_the_host_reads_late(late: int) -> None:
    generator = Generator(exact(), GenerationOptions(NEW, eos_token_ids=EOS, slots=7), pace=Pace(late))
    assert_same(in_segments(generator, some_prompts(), NEW, 5), generator.generate(some_prompts(), range(ROWS)))


def test_a_window_reaches_back_over_a_segments_edge() -> None:
    generator = Generator(exact(tiny_config(windows=(6, 0))), GenerationOptions(NEW, eos_token_ids=EOS))
    assert_same(in_segments(generator, some_prompts(), NEW, 5), generator.generate(some_prompts(), range(ROWS)))


@pytest.mark.parametrize("least", [0, 7])
def test_strings_that_end_a_response_are_found_over_edges(tmp_path, least: int) -> None:
    folder = train_tokenizer(tmp_path, ["na na na ab # é", "abab cd"], size=280)
    stops = partial(StopStrings, load_tokens(folder), ("é", "ab", "na na", "# a"))
    model = exact(tiny_config(vocabulary_size=280))
    free = Generator(model, GenerationOptions(NEW, min_new_tokens=least))
    generator = Generator(model, GenerationOptions(NEW, min_new_tokens=least, stops=stops))
    whole = generator.generate(some_prompts(), range(ROWS))
    ended = [len(row) < NEW for row in whole.tokens]
    assert any(ended) and not all(ended)
    assert whole.finished != free.generate(some_prompts(), range(ROWS)).finished
    assert_same(in_segments(generator, some_prompts(), NEW, 1), whole)


def test_each_row_has_a_limit_of_its_own() -> None:
    generator, prompts = Generator(exact(), GenerationOptions(NEW)), some_prompts()
    whole = generator.generate(prompts, range(ROWS))
    begun = [tokens[: row % 4] for row, tokens in enumerate(whole.tokens)]
    limits = [4 + row % 9 for row in range(ROWS)]
    made = generator.generate(prompts, range(ROWS), limits, begun)
    for row, (tokens, new) in enumerate(zip(whole.tokens, made.tokens, strict=True)):
        assert new.tolist() == tokens[row % 4 : limits[row]].tolist()


def test_a_row_that_has_all_its_tokens_is_refused() -> None:
    generator = Generator(exact(), GenerationOptions(NEW))
    with pytest.raises(ValueError, match="Row 0 has 4 tokens already, and its limit is 4; it"):
        generator.generate([np.array([3])], [0], [4], [np.arange(4)])
    with pytest.raises(ValueError, match="1 prompts, 1 seeds, 1 limits and 2 begun responses"):
        generator.generate([np.array([3])], [0], [4], [np.arange(2)] * 2)

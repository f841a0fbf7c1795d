"""What a server is asked for of responses that are begun, and where those end by their text."""

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from support.tiny_models import tiny_config, tiny_model
from support.tiny_tokenizer import train_tokenizer

from hpcrl.data.tokens import Tokens, load_tokens
from hpcrl.engines.servers.rests import Asked, ended_by_text, rests
from hpcrl.models.generation import GenerationOptions, Generator
from hpcrl.models.history import Generated
from hpcrl.models.stopping import StopStrings

STRINGS = ("é", "ab", "#", "na na")
NEW, ROWS = 24, 40


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    folder = tmp_path_factory.mktemp("tokenizer")
    return load_tokens(train_tokenizer(folder, ["na na na ab # é", "abab cd"], size=280))


def generated(tokens: Tokens, strings: tuple[str, ...], least: int) -> Generated:
    model = tiny_model(replace(tiny_config(), vocabulary_size=280), seed=1)
    stops = partial(StopStrings, tokens, strings) if strings else None
    options = GenerationOptions(
        max_new_tokens=NEW, min_new_tokens=least, eos_token_ids=tokens.eos_ids, stops=stops, slots=ROWS
    )
    return Generator(model, options).generate([np.arange(3, 5 + i) for i in range(ROWS)], list(range(ROWS)))


@pytest.mark.parametrize("least", [0, 7])
def test_a_text_that_comes_to_a_string_over_a_cut_ends_as_one_that_is_made_at_once(tokens: Tokens, least: int) -> None:
    whole, unread = generated(tokens, STRINGS, least), generated(tokens, (), least)
    draw, ends = np.random.default_rng(least), Counter[str]()
    cuts = [int(draw.integers(min(len(row), NEW - 1) + 1)) for row in whole.tokens]
    begun = [row[:cut] for row, cut in zip(whole.tokens, cuts, strict=True)]
    going = [row for row, cut in enumerate(cuts) if cut < len(whole.tokens[row])]
    rest = Generated(
        [unread.tokens[row][cuts[row] :] for row in going],
        [unread.logprobs[row][cuts[row] :] for row in going],
        [unread.finished[row] for row in going],
    )
    before = [begun[row] for row in going]
    fewest = [max(0, least - len(tokens_)) for tokens_ in before]
    found = ended_by_text(rest, before, fewest, partial(StopStrings, tokens, STRINGS))
    for row, made, logprobs, finished in zip(going, *found, strict=True):
        np.testing.assert_array_equal(made, whole.tokens[row][cuts[row] :])
        np.testing.assert_allclose(logprobs, whole.logprobs[row][cuts[row] :], rtol=1e-6)
        assert finished == whole.finished[row]
        ends["shorter" if len(made) < len(unread.tokens[row]) - cuts[row] else "as long"] += 1
    assert min(ends["shorter"], ends["as long"]) > 3, ends


def test_a_rest_is_asked_for_as_a_text_of_its_own() -> None:
    prompts = [np.array([1, 2]), np.array([3])]
    asked = Asked(prompts, [7, 2**64 - 1], [8, 8], [3, 3])
    begun = [np.zeros(0, np.int32), np.array([5, 6, 7, 8])]
    found = rests(asked, begun)
    assert [tokens.tolist() for tokens in found.prompts] == [[1, 2], [3, 5, 6, 7, 8]]
    assert (found.limits, found.least) == ([8, 4], [3, 0])
    assert found.seeds[0] == 7, "what is not begun is drawn as if nothing were cut"
    assert 0 <= found.seeds[1] < 2**64 and found.seeds[1] != 2**64 - 1


def test_each_cut_of_each_response_has_a_seed_of_its_own() -> None:
    lengths, seeds = range(0, 4096, 8), [0, 1, 2**63, 2**64 - 1, *range(1000, 1064)]
    found = [
        seed
        for of in seeds
        for seed in rests(
            Asked([np.zeros(1)] * len(lengths), [of] * len(lengths), [4096] * len(lengths), [0] * len(lengths)),
            [np.zeros(length) for length in lengths],
        ).seeds
    ]
    assert len(set(found)) == len(found) == len(lengths) * len(seeds)
    assert abs(np.mean([bin(seed).count("1") for seed in found if seed > 2**32]) - 32) < 0.2

"""Strings that end responses, against decoding every prefix of them."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny import ALONE
from support.tiny_models import tiny_config, tiny_model
from support.tiny_tokenizer import END, train_tokenizer

from hpcrl.config.generation import GenerationConfig
from hpcrl.data.tokens import Tokens, before_stop, load_tokens
from hpcrl.engines.model import PackedModel
from hpcrl.engines.sampler import Sampler
from hpcrl.models.generation import GenerationOptions, Generator
from hpcrl.models.history import Generated
from hpcrl.models.stopping import StopStrings

STRINGS = ("é", "ab", "#", "na na")
NEW = 24


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    folder = tmp_path_factory.mktemp("tokenizer")
    return load_tokens(train_tokenizer(folder, ["na na na ab # é", "abab cd"], size=280))


def generated(tokens: Tokens, strings: tuple[str, ...], seed: int = 0, **options: Any) -> Generated:
    model = tiny_model(replace(tiny_config(), vocabulary_size=280), seed=1)
    stops = partial(StopStrings, tokens, strings) if strings else None
    settings = GenerationOptions(max_new_tokens=NEW, eos_token_ids=tokens.eos_ids, stops=stops, **options)
    prompts = [np.arange(3, 5 + i) for i in range(40)]
    return Generator(model, settings).generate(prompts, [seed + i for i in range(40)])


@pytest.mark.parametrize("least", [0, 5])
def test_a_response_ends_with_the_first_token_by_which_its_text_has_a_string(tokens: Tokens, least: int) -> None:
    whole = generated(tokens, (), min_new_tokens=least)
    ended = generated(tokens, STRINGS, min_new_tokens=least)
    stopped = 0
    for free, response, logprobs, of_free, finished in zip(
        whole.tokens, ended.tokens, ended.logprobs, whole.logprobs, ended.finished, strict=True
    ):
        texts = [tokens.decode(free[: i + 1]) for i in range(len(free))]
        found = [i + 1 for i, text in enumerate(texts) if i + 1 >= least and any(string in text for string in STRINGS)]
        count = min([len(free), *found])
        stopped += bool(found) and count < len(free)
        assert response.tolist() == free[:count].tolist() and logprobs.tolist() == of_free[:count].tolist()
        assert finished == (bool(found) or int(response[-1]) in tokens.eos_ids)
    assert 5 < stopped < 40


@pytest.mark.parametrize("slots", [1, 3, 17])
def test_slots_and_neighbours_change_no_response(tokens: Tokens, slots: int) -> None:
    one, other = generated(tokens, STRINGS), generated(tokens, STRINGS, slots=slots)
    assert [row.tolist() for row in one.tokens] == [row.tolist() for row in other.tokens]
    assert one.finished == other.finished


def test_strings_over_tokens_and_characters_over_tokens_are_found(tokens: Tokens) -> None:
    for text in ("naïve na na!", "x#", "ca\u00e9b", "a\u0301b ab", "nothing"):
        ids = tokens.tokenizer.encode(text, add_special_tokens=False).ids
        for strings in (("na na",), ("#",), ("é",), ("b ab",), ("zz",)):
            reader = StopStrings(tokens, strings)
            heard = [reader.take(token) for token in ids]
            decoded = [tokens.decode(ids[: i + 1]) for i in range(len(ids))]
            assert heard == [any(string in said for string in strings) for said in decoded]


def test_a_special_token_is_no_text(tokens: Tokens) -> None:
    reader = StopStrings(tokens, (END, "end"))
    assert not reader.take(tokens.eos_id)


def test_a_reward_sees_the_text_before_the_first_string(tokens: Tokens) -> None:
    (response,) = tokens.encode_answers(["one # two ab #"])
    said = [before_stop(tokens.decode(response), stop) for stop in ((), ("#",), ("two", "#"), ("ab", "two "), ("zz",))]
    assert said == ["one # two ab #", "one ", "one ", "one # ", "one # two ab #"]


def test_real_settings_reach_the_sampler(tmp_path: Path) -> None:
    folder = train_tokenizer(tmp_path, ["na na na ab # é", "abab cd"], size=280)
    model = tiny_model(replace(tiny_config(), vocabulary_size=280), seed=1)
    sampler = Sampler(PackedModel("actor", model), 1000, load_tokens(folder).eos_ids, folder, ALONE)
    prompts = [np.arange(3, 5 + i) for i in range(40)]
    config = GenerationConfig(max_new_tokens=NEW, stop=STRINGS)
    made = sampler.generate(prompts, range(40), config)
    expected = generated(load_tokens(folder), STRINGS)
    assert [row.tolist() for row in made.tokens] == [row.tolist() for row in expected.tokens]
    assert made.finished == expected.finished

"""Texts through each kind of tokenizer and back: whole, as answers that go on, token by token, and after an export."""

import random
from itertools import accumulate
from operator import or_
from pathlib import Path

import numpy as np
import pytest
from support.family_tokenizers import BYTES, END, KINDS, TURN, write_tokenizer

from hpcrl.data.tokens import HALF, TOKENIZER_FILES, Tokens, load_tokens
from hpcrl.durable.model_folder import copy_tokenizer
from hpcrl.errors import DataError
from hpcrl.models.stopping import StopStrings
from hpcrl.rewards.places import token_at

HARD = [
    "How many apples?",
    "  two spaces lead, two end  ",
    " x",
    "",
    " ",
    "\n",
    "\n\n  next\tline\r\n",
    "family 👩‍👩‍👧 and 🎉🎉",
    "中文价格是十二元。日本語のテキスト",
    "def f(x):\n\tif x:\n        return {'a': [1, 2]}  # done\n",
    "Ünïcödé café \u00a0 — “quoted”",
    "2 + 2 = 4, 1000000",
]
STRINGS = ["é", " a", "na", "你", "#", "ap", "  ", "x):", "好na", "🎉"]


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def tokens(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return load_tokens(write_tokenizer(tmp_path_factory.mktemp(kind), kind))


def test_an_answer_is_decoded_as_it_was_encoded(tokens: Tokens) -> None:
    assert [tokens.decode(ids) for ids in tokens.encode_answers(HARD)] == HARD


def test_a_prompt_is_too_but_for_the_space_that_mistrals_takes_for_its_own(kind: str, tokens: Tokens) -> None:
    expected = [text.removeprefix(" ") if kind == "mistral" else text for text in HARD]
    assert [tokens.decode(ids) for ids in tokens.encode_prompts(HARD)] == expected


def test_a_prompt_and_its_answer_are_the_text_of_both(tokens: Tokens) -> None:
    (prompt,) = tokens.encode_prompts(["Q: how many?"])
    for text, answer in zip(HARD, tokens.encode_answers(HARD), strict=True):
        assert tokens.decode([*prompt, *answer]) == "Q: how many?" + text
    (answer,), (whole,) = tokens.encode_answers([" 42 apples"]), tokens.encode_prompts(["Q: how many? 42 apples"])
    assert [*prompt, *answer[:-1]] == whole.tolist()


def test_where_the_tokens_of_an_answer_begin_is_counted_from_its_own_first_character(tokens: Tokens) -> None:
    for text, (ids, starts) in zip(HARD, tokens.encode_on(HARD), strict=True):
        assert len(ids) == len(starts) and sorted(starts.tolist()) == starts.tolist()
        assert not text or 0 == starts[0] <= starts[-1] < len(text)


def test_special_tokens_are_one_token_each_and_no_text(tokens: Tokens) -> None:
    (chat,) = tokens.encode_chats([f"{TURN}hi{END}{TURN}"])
    turn, end = (tokens.tokenizer.token_to_id(text) for text in (TURN, END))
    assert [token for token in chat.tolist() if token in (turn, end)] == [turn, end, turn]
    assert tokens.decode(chat).strip() == "hi"


def drawn(tokens: Tokens, rng: random.Random) -> list[int]:
    """Tokens as a model may sample them: pieces of texts, and any others, bytes that are no character among them."""
    vocabulary, pieces = tokens.tokenizer.get_vocab(), [ids.tolist()[:-1] for ids in tokens.encode_answers(STRINGS)]
    bytes_alone = [vocabulary[byte] for byte in BYTES[0xC0:] if byte in vocabulary] or list(vocabulary.values())
    made = [rng.choice((rng.choice(pieces), [rng.choice(bytes_alone)], rng.choice(pieces))) for _ in range(8)]
    return [token for piece in made for token in piece]


def test_a_text_that_is_read_token_by_token_is_the_text_of_all(tokens: Tokens) -> None:
    rng, heard = random.Random(1), 0
    texts = [ids.tolist() for ids in tokens.encode_answers(HARD)]
    for ids in texts + [drawn(tokens, rng) for _ in range(100)]:
        strings = rng.sample(STRINGS, 3)
        reader = StopStrings(tokens, strings)
        whole = [tokens.decode(ids[: count + 1]) for count in range(len(ids))]
        said = list(accumulate((any(string in text for string in strings) for text in whole), or_))
        assert [reader.take(token) for token in ids] == said, (ids, strings)
        heard += any(said)
    assert heard > 40


def test_a_place_in_a_text_is_at_the_first_token_that_reaches_it(tokens: Tokens) -> None:
    for text, ids in zip(HARD, tokens.encode_answers(HARD), strict=True):
        lengths = [len(tokens.decode(ids[: count + 1]).rstrip("\ufffd")) for count in range(len(ids))]
        for end in range(1, len(text) + 1):
            assert token_at(end, ids, tokens.decode) == next(i for i, length in enumerate(lengths) if length >= end)


def test_what_an_export_copies_is_the_same_to_the_byte(kind: str, tmp_path: Path) -> None:
    folder, copy = write_tokenizer(tmp_path / kind, kind), tmp_path / "export"
    for number, name in enumerate(TOKENIZER_FILES):
        if not (folder / name).exists():
            (folder / name).write_bytes(b'{"eos_token_id": %d}\r\n\n' % number)
    copy.mkdir()
    copy_tokenizer(folder, copy)
    names = {path.name for path in copy.iterdir()}
    assert names == {*TOKENIZER_FILES} - {"config.json"}
    assert all((copy / name).read_bytes() == (folder / name).read_bytes() for name in names)


@pytest.mark.parametrize("older", ["tokenizer.model", "vocab.json"])
def test_a_folder_with_older_files_alone_is_told_what_makes_the_newer_of_them(tmp_path: Path, older: str) -> None:
    (tmp_path / older).write_bytes(b"\n\x0e\n\x05<unk>")
    told = rf"transformers makes it of {older}: `pip install .*save_pretrained\(.*with another actor\.path"
    with pytest.raises(DataError, match=r"tokenizer\.json is no tokenizer.*" + told):
        load_tokens(tmp_path, "actor.path")


def test_the_ends_of_tokens_are_those_of_the_texts_that_begin_so(tokens: Tokens) -> None:
    """Also of tokens of parts of characters, of none, and of special ones in the middle."""
    ids = tokens.encode_answers([*HARD, "价格 12 €, naïve 🙂🙂 end"])
    ids += [np.concatenate(ids), *tokens.encode_prompts(HARD[:2]), ids[-1][:-3]]
    ids += [np.random.default_rng(seed).integers(0, tokens.tokenizer.get_vocab_size(), 40) for seed in range(5)]
    for each in ids:
        text, ends = tokens.decode(each), tokens.ends(each)
        assert ends.dtype == np.int32 and len(ends) == len(each) and (np.diff(ends) >= 0).all()
        if HALF not in text:  # else a byte that belongs to no character may be told of with those around it
            begun = [tokens.decode(each[: i + 1]).rstrip(HALF) for i in range(len(each))]
            there = [len(one) if text.startswith(one) else 0 for one in begun]
            # a byte of a character that has only begun may hide those before it
            assert ends.tolist() == list(accumulate(there, max)), text
        assert not len(each) or ends[-1] == len(text)

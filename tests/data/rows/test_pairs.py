"""Rows with pairs of answers: a row's pairs are one sample."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.templates import CHATML, DATED, FORGETFUL, MARKED, chat_tokenizer
from support.tiny_tokenizer import train_tokenizer

from hpcrl.config.control import ControlConfig
from hpcrl.config.data import DataConfig
from hpcrl.data.chat import find_template
from hpcrl.data.indexes import ScratchIndexes
from hpcrl.data.rows.kind import Dataset
from hpcrl.data.rows.pair_lines import WholePairsLine, sides
from hpcrl.data.rows.pairs import PAIRS
from hpcrl.data.tokens import load_tokens
from hpcrl.errors import DataError
from hpcrl.recipes.sft import SFTExperiment, SFTModelConfig

ONE = {"prompt": "2 + 2 = ", "chosen": "4", "rejected": "22"}
SEVERAL = {"prompt": "a, b, ", "chosen": ["c", "c, d"], "rejected": ["b, b, b", "a"], "margin": [1, 0.5]}

USER, NEXT = {"role": "user", "content": "2 + 2 ="}, {"role": "user", "content": "and 4"}
GOOD, BAD = {"role": "assistant", "content": "4"}, {"role": "assistant", "content": "22 or so"}
CHAT = [USER, GOOD]
CHATS: list[dict[str, Any]] = [
    {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
    {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
    {"prompt": "2 + 2 =", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
    {"prompt": [USER], "chosen": [USER, GOOD], "rejected": [USER, BAD]},
    {"prompt": [USER], "chosen": [[GOOD]], "rejected": [[BAD]]},
    {"prompt": [USER, GOOD, NEXT], "chosen": [GOOD], "rejected": [BAD, NEXT, GOOD]},
    {"chosen": [USER, GOOD, NEXT, GOOD], "rejected": [USER, GOOD, NEXT, BAD, NEXT, GOOD]},
    {"chosen": [[USER, GOOD], [USER, BAD]], "rejected": [[USER, BAD], [USER, BAD, NEXT, GOOD]], "margin": [1, 2]},
]
"""Chats, each line in a form of its own; those that are alike stand together."""


def experiment(folder: Path, *rows: Any, **data: Any) -> SFTExperiment:
    tokenizer = train_tokenizer(folder / "tokenizer", ["2 + 2 = 4", "a, b, c, d"])
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = DataConfig(train=str(path), evaluate=str(path), tokenizer=str(tokenizer), batch_size=1, **data)
    return SFTExperiment(data=config, actor=SFTModelConfig(path="model"), control=ControlConfig(steps=1))


def opened(of: SFTExperiment, evaluates: bool) -> Mapping[str, Dataset]:
    return PAIRS.open(of, evaluates, ScratchIndexes())


def test_all_pairs_of_a_row_are_one_sample_with_a_part_for_each(tmp_path: Path) -> None:
    found = experiment(tmp_path, ONE, SEVERAL)
    tokens = load_tokens(found.data.tokenizer or "")
    batch = opened(found, False)["train"].rows(["1@0", "0@0"])
    for field in ("chosen", "rejected"):
        texts = [[tokens.decode(part) for part in parts] for parts in batch.parts(field)]
        assert texts == [SEVERAL[field], [ONE[field]]]
        assert all(part[-1] == tokens.eos_id for parts in batch.parts(field) for part in parts)
    assert [row.tolist() for row in batch.rows("margins")] == [[1.0, 0.5], [0.0]]
    assert {key: batch.data[key].dtype.name for key in batch.keys} == {k: f.dtype for k, f in PAIRS.keys.items()}


def test_a_row_weighs_what_a_model_is_given_of_it(tmp_path: Path) -> None:
    training = opened(experiment(tmp_path, SEVERAL), False)["train"]
    batch = training.rows(["0@0"])
    (prompt,), (chosen,), (rejected,) = (batch.length(key) for key in ("prompts", "chosen", "rejected"))
    assert training.lengths(["0@0"]) == [4 * prompt + chosen + rejected]


def test_the_longest_answer_of_a_row_is_bounded(tmp_path: Path) -> None:
    found = experiment(tmp_path, ONE, SEVERAL)
    longest = max(len(part) for part in opened(found, False)["train"].rows(["1@0"]).parts("rejected")[0])
    bounded = opened(experiment(tmp_path, ONE, SEVERAL, max_answer_tokens=longest - 1), False)["train"]
    assert bounded.ids == ("0",) and f"data.max_answer_tokens = {longest - 1}" in bounded.notice


def test_an_evaluation_has_the_same_rows_under_keys_of_its_own(tmp_path: Path) -> None:
    both = opened(experiment(tmp_path, ONE, SEVERAL), True)
    own, same = both["eval"].rows(["1@0"]), both["train"].rows(["1@0"])
    assert own.keys == tuple("eval_" + key for key in same.keys)
    for key in same.keys:
        np.testing.assert_array_equal(own.data["eval_" + key], same.data[key])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"chosen": ["a", "b"]}, "2 in chosen and 1 in rejected, must be equal and at least 1"),
        ({"chosen": [], "rejected": []}, "0 in chosen and 0 in rejected, must be equal and at least 1"),
        ({"rejected": None}, r"Expected `str \| array`, got `null` - at `\$.rejected`"),
        ({"chosen": [1], "rejected": ["a"]}, r"Expected `str \| object \| array`, got `int` - at `\$.chosen\[0\]`"),
        ({"chosen": CHAT}, "of chosen and rejected some are texts and some are messages"),
        ({"chosen": [], "rejected": [CHAT]}, "0 in chosen and 1 in rejected, must be equal and at least 1"),
        ({"chosen": CHAT, "rejected": [{"role": "user", "content": "no"}]}, "begin with nothing in common"),
        ({"chosen": CHAT, "rejected": [{"content": "no"}]}, r"missing required field `role` - at `\$.rejected"),
        ({"chosen": CHAT, "rejected": CHAT}, "prompt is a text in some rows and messages in others"),
        ({"margin": [1, 2]}, "margin has 2 numbers for 1 pairs"),
        ({"margin": "much"}, r"at `\$.margin`"),
    ],
)
def test_a_row_that_is_no_pair_is_named_by_line_field_and_setting(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(
        DataError, match=rf"(?s)line 2: .*{says}.*data.train .*chosen and rejected \(and maybe prompt\)"
    ):
        opened(experiment(tmp_path, ONE, ONE | change), False)


def chats(folder: Path, *rows: Any, template: str = CHATML) -> SFTExperiment:
    found = experiment(folder, *rows)
    tokenizer = str(chat_tokenizer(folder / "chats", template))
    return replace(found, data=replace(found.data, tokenizer=tokenizer))


@pytest.mark.parametrize("row", CHATS, ids=range(len(CHATS)))
@pytest.mark.parametrize("template", [CHATML, MARKED, DATED], ids=["chatml", "marked", "dated"])
def test_pairs_of_chats_are_what_the_template_makes_of_them(tmp_path: Path, row: dict[str, Any], template: str) -> None:
    """The prompt and each side are the template's text of all of it, through the last EOS."""
    found = chats(tmp_path, row, template=template)
    tokens, chat = load_tokens(found.data.tokenizer or ""), find_template(Path(found.data.tokenizer or ""), None, {})
    assert chat is not None
    batch = opened(found, False)["train"].rows(["0@0"])
    begun = [USER, GOOD, NEXT] if NEXT in [*row.get("prompt", ()), *sides(row["chosen"])[0]] else [USER]
    assert batch.rows("prompts")[0].tolist() == tokens.tokenizer.encode(chat.prompt(begun)).ids
    for field in ("chosen", "rejected"):
        for part, side in zip(batch.parts(field)[0], sides(row[field]), strict=True):
            whole = side if side[: len(begun)] == begun else [*begun, *side]
            text = chat.prompt(begun) + chat.following(begun, whole[len(begun) :])
            assert part[-1] == tokens.eos_id and (part == tokens.eos_id).sum() >= 1
            read = tokens.tokenizer.decode([*batch.rows("prompts")[0], *part], skip_special_tokens=False)
            assert text.rstrip("\n") == read and text == chat._render(whole)[0]


def test_chats_without_a_prompt_are_the_rows_that_they_are_with_it(tmp_path: Path) -> None:
    made = []
    for number, row in enumerate(CHATS[:5]):
        batch = opened(chats(tmp_path / str(number), row), False)["train"].rows(["0@0"])
        made.append({key: batch.data[key].tolist() for key in batch.keys})
    assert made == made[:1] * 5


def test_chats_that_a_template_changes_later_are_named(tmp_path: Path) -> None:
    thinking = [USER, {"role": "assistant", "content": "<think>2</think>4"}]
    row = {"prompt": [*thinking, NEXT], "chosen": [GOOD], "rejected": [BAD]}
    assert opened(chats(tmp_path / "fine", row, template=FORGETFUL), False)["train"].lengths(["0@0"])
    row = {"prompt": [USER], "chosen": thinking, "rejected": [thinking[1], NEXT, BAD]}
    changing = FORGETFUL.replace("[{{ message.role }}]", "[{{ message.role }}]{% if loop.length > 2 %}!{% endif %}", 1)
    with pytest.raises(DataError, match=r"row '0' of data.train .* writes the prompt in another way"):
        opened(chats(tmp_path / "odd", row, template=changing), False)["train"].lengths(["0@0"])


@pytest.mark.parametrize(
    ("chosen", "rejected", "prompt"),
    [
        ("Q: 2? A: 4", "Q: 2? A: 22", "Q: 2? A:"),
        ("a, b, c", "a, b, d", "a, b,"),
        ("aab", "aac", "aa"),
        ("same", "same", "sam"),
        ("aa", "aab", "a"),
    ],
)
def test_texts_without_a_prompt_are_cut_as_trl_cuts_them(chosen: str, rejected: str, prompt: str) -> None:
    """Against TRL 1.16's `extract_prompt`, whose results these are."""
    found = WholePairsLine.normal({"chosen": chosen, "rejected": rejected})
    assert found["prompt"] == prompt == trl_prompt(chosen, rejected)
    assert (found["chosen"], found["rejected"]) == ([chosen[len(prompt) :]], [rejected[len(prompt) :]])


def trl_prompt(chosen: str, rejected: str) -> str:
    """TRL's loop."""
    at = 0
    for at in range(min(len(chosen), len(rejected))):
        if chosen[at] != rejected[at]:
            at -= chosen[at - 1] == " "
            break
    return chosen[:at]

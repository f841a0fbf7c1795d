"""Rows with pairs of answers: a row's pairs are one sample."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_tokenizer import train_tokenizer

from hpcrl.config.control import ControlConfig
from hpcrl.config.data import DataConfig
from hpcrl.data.indexes import ScratchIndexes
from hpcrl.data.rows.kind import Dataset
from hpcrl.data.rows.pairs import PAIRS
from hpcrl.data.tokens import load_tokens
from hpcrl.errors import DataError
from hpcrl.recipes.sft import SFTExperiment, SFTModelConfig

ONE = {"prompt": "2 + 2 = ", "chosen": "4", "rejected": "22"}
SEVERAL = {"prompt": "a, b, ", "chosen": ["c", "c, d"], "rejected": ["b, b, b", "a"], "margin": [1, 0.5]}


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
        ({"chosen": ["a", "b"]}, "chosen has 2 texts and rejected 1"),
        ({"chosen": [], "rejected": []}, "chosen has 0 texts"),
        ({"rejected": None}, r"Expected `str \| array`, got `null` - at `\$.rejected`"),
        ({"chosen": [1], "rejected": ["a"]}, r"Expected `str`, got `int` - at `\$.chosen\[0\]`"),
        ({"margin": [1, 2]}, "margin has 2 numbers for 1 pairs"),
        ({"margin": "much"}, r"at `\$.margin`"),
    ],
)
def test_a_row_that_is_no_pair_is_named_by_line_field_and_setting(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(DataError, match=rf"(?s)line 2: .*{says}.*data.train .*prompt and chosen and rejected"):
        opened(experiment(tmp_path, ONE, ONE | change), False)

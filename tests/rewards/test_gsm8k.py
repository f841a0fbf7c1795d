"""The parsers against the public definition (verl's `reward_score/gsm8k.py`), case by case."""

import pytest

from hpcrl.errors import DataError
from hpcrl.rewards.gsm8k import expected, flexible, score, strict

SENTENCES = "So she has 3 apples."


@pytest.mark.parametrize(
    ("response", "number"),
    [
        ("#### 72", "72"),
        ("48+24 = 72\n#### 72", "72"),
        ("#### 1,234,567", "1234567"),
        ("#### -5", "-5"),
        ("#### 3.50", "3.50"),
        ("#### 7.", "7."),
        ("#### 1 then #### 2", "2"),
        ("#### 12abc", "12"),
        ("#### ,", ""),
        ("####72", None),
        ("####  72", None),
        ("#### $72", None),
        ("### 72", None),
        ("72", None),
        ("", None),
        (SENTENCES, None),
    ],
)
def test_strict_takes_the_number_after_the_last_hashes(response: str, number: str | None) -> None:
    assert strict(response) == number


@pytest.mark.parametrize(
    ("response", "number"),
    [
        ("it is 3 or 4", "4"),
        ("it is 1,000", "1,000"),
        ("it is 4 .", "4"),
        ("it is 4.", "4."),
        ("-12!", "-12"),
        ("no number . ", None),
        ("", None),
        ("a , b", ","),
    ],
)
def test_flexible_takes_the_last_number_as_it_stands(response: str, number: str | None) -> None:
    assert flexible(response) == number


@pytest.mark.parametrize("parse", [strict, flexible])
def test_only_the_last_300_characters_are_looked_at(parse: object) -> None:
    assert callable(parse)
    assert parse("#### 5" + "x" * 294) == "5"
    assert parse("#### 5" + "x" * 301) is None
    assert strict("#### 5" + "x" * 295) is None


def test_only_the_right_number_scores() -> None:
    row = {"id": "r", "answer": "48+24 = 72\n#### 72"}
    assert score("#### 72", row) == 1.0
    assert score("#### 72.0", row) == 0.0
    assert score("#### 73", row) == 0.0
    assert score("72", row) == 0.0
    assert score("#### 73", row, format_score=0.1) == 0.1
    assert score("72", row, format_score=0.1) == 0.0
    assert score("it is 72", row, method="flexible") == 1.0


@pytest.mark.parametrize(
    ("answer", "number"),
    [("x\n#### 70,000", "70000"), ("95", "95"), (" 1,000 ", "1000"), ("$5", "5"), ("#### -3", "-3")],
)
def test_a_rows_answer_is_a_solution_or_the_number_alone(answer: str, number: str) -> None:
    assert expected({"answer": answer}) == number


def test_a_row_without_an_answer_is_named() -> None:
    with pytest.raises(DataError, match="'row-7' has the answer None"):
        score("#### 1", {"id": "row-7"})


def test_a_row_of_verls_says_what_is_right() -> None:
    assert score("#### 72", {"reward_model": {"style": "rule", "ground_truth": "72"}}) == 1.0

r"""The last \boxed{} as the public definition has it (verl's reward_score/math_reward.py), and math-verify."""

import logging

import pytest

from hpcrl.errors import DataError
from hpcrl.rewards.math import last_boxed, normalised, score


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"so \boxed{4}", "4"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"$\boxed 7$ it is", "7"),
        (r"\boxed{1} and \boxed 7", "7"),
        (r"\boxed{never ends", None),
        (r"\boxed5", None),
        (r"\fbox{5}", None),
        (r"\boxed{5} \boxed", None),
        (r"\boxed{}", ""),
        ("no box", None),
        ("", None),
    ],
)
def test_the_answer_is_in_the_braces_of_the_last_box(text: str, found: str | None) -> None:
    assert last_boxed(text) == found


@pytest.mark.parametrize(
    ("latex", "normal"),
    [
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        (r"\tfrac12", r"\frac{1}{2}"),
        (r"\frac1{72}", r"\frac{1}{72}"),
        (r"\frac{a}{b}+\frac34x", r"\frac{a}{b}+\frac{3}{4}x"),
        (r"\frac1", r"\frac1"),
        ("1/2", r"\frac{1}{2}"),
        ("-3/4", r"\frac{-3}{4}"),
        ("03/4", "03/4"),
        ("a/b", "a/b"),
        ("1/2/3", "1/2/3"),
        ("0.5", r"\frac{1}{2}"),
        (".5", r"\frac{1}{2}"),
        (".25", "0.25"),
        ("x = 5", "5"),
        ("total = 5", "total=5"),
        ("x=y=5", "x=y=5"),
        (r"\sqrt3", r"\sqrt{3}"),
        (r"2\sqrt{3}\sqrt 5", r"2\sqrt{3}\sqrt{}5"),
        (r"10\%", "10"),
        (r"\$5", "5"),
        (r"30^\circ", "30"),
        (r"30^{\circ}", "30"),
        (r"5\text{ cm}", "5"),
        (r"5 \text{cm}", r"5\text{cm}"),
        (r"\left(1, 2\right)", "(1,2)"),
        (r"1\!000", "1000"),
        ("1 000\n", "1000"),
        (r"a \\ b", r"a\b"),
        ("", ""),
    ],
)
def test_what_does_not_change_an_answer_is_taken_away(latex: str, normal: str) -> None:
    assert normalised(latex) == normal


@pytest.mark.parametrize(
    ("response", "answer", "value"),
    [
        (r"\boxed{\dfrac12}", "1/2", 1.0),
        (r"\boxed{ 1/2 }", "1/2", 1.0),
        (r"\boxed{2/4}", "1/2", 0.0),
        (r"\boxed{x=3}", "3", 1.0),
        (r"\boxed{3}", r"so \boxed{3}", 1.0),
        ("3", "3", 0.0),
        (r"\boxed{\sqrt}", r"\sqrt", 1.0),
        (r"\boxed{\sqrt}", "2", 0.0),
        (r"\boxed{5\text{ cm}\text{ m}}", "5", 0.0),
    ],
)
def test_only_the_same_answer_scores(response: str, answer: str, value: float) -> None:
    assert score(response, {"answer": answer}) == value


@pytest.mark.parametrize(
    ("response", "answer", "value"),
    [
        (r"\boxed{2/4}", "1/2", 1.0),
        (r"\boxed{0.5}", r"\frac{1}{2}", 1.0),
        (r"the answer is $x^2+2x+1$", "(x+1)^2", 1.0),
        (r"\boxed{\{2, 1\}}", r"\{1,2\}", 1.0),
        (r"\boxed{3}", "4", 0.0),
        ("nothing here", "4", 0.0),
    ],
)
def test_what_is_equal_as_mathematics_is_verified_as_right(response: str, answer: str, value: float) -> None:
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    assert score(response, {"answer": answer}, method="verify") == value


def test_a_row_without_an_answer_is_named() -> None:
    with pytest.raises(DataError, match="'row-7' has the answer 7; math needs a text"):
        score("", {"id": "row-7", "answer": 7})

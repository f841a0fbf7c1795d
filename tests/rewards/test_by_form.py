"""The rewards of a form, of a length, and of mixed data."""

import pytest

from hpcrl.config.built_in_rewards import option_problems
from hpcrl.errors import DataError
from hpcrl.rewards import by_source, format, length

R1 = r"<think>.*</think>\s*<answer>.*</answer>"


@pytest.mark.parametrize(
    ("response", "value"),
    [
        ("<think>a\nb</think>\n<answer>c</answer>", 1.0),
        ("<think></think><answer></answer>", 1.0),
        ("so <think>a</think><answer>c</answer>", 0.0),
        ("<think>a</think><answer>c</answer> end", 0.0),
        ("", 0.0),
    ],
)
def test_the_whole_response_must_have_the_form(response: str, value: float) -> None:
    assert format.score(response, pattern=R1) == value


@pytest.mark.parametrize(
    ("tokens", "value"), [(0, 0.0), (6, 0.0), (7, -0.25), (8, -0.5), (10, -1.0), (11, -1.0), (99, -1.0)]
)
def test_the_penalty_of_a_length_falls_linearly_to_its_end(tokens: int, value: float) -> None:
    assert length.score([1] * tokens, most=10, buffer=4) == value


def test_without_a_buffer_only_what_is_as_long_as_may_be_is_penalised() -> None:
    assert [length.score([1] * count, most=3) for count in (2, 3)] == [0.0, -1.0]


@pytest.mark.parametrize(
    ("source", "response", "answer", "value"),
    [
        ("openai/gsm8k", "#### 4", "4", 1.0),
        ("openai/gsm8k", r"\boxed{4}", "4", 0.0),
        ("lighteval/MATH", r"\boxed{4}", "4", 1.0),
        ("DigitalLearningGmbH/MATH-lighteval", r"\boxed{\dfrac12}", r"\frac{1}{2}", 1.0),
        ("HuggingFaceH4/MATH-500", r"\boxed{5}", "4", 0.0),
        ("mine", "4 ", "4", 1.0),
    ],
)
def test_each_source_has_the_score_of_its_function(source: str, response: str, answer: str, value: float) -> None:
    row = {"data_source": source, "reward_model": {"ground_truth": answer}}
    assert by_source.score(response, row, sources={"mine": "exact"}) == value


@pytest.mark.parametrize("source", ["mine", None])
def test_a_row_of_no_known_source_is_named_with_what_is_known(source: str | None) -> None:
    with pytest.raises(DataError, match=rf"row 'r' has the data_source {source!r}; by_source knows openai/gsm8k, "):
        by_source.score("", {"id": "r", "data_source": source})


@pytest.mark.parametrize(
    ("source", "by"),
    [
        ("aime24", "math_dapo"),
        ("math_dapo", "math_dapo"),
        ("numina_cn_k12", "prime_math"),
        ("searchR1_nq", "search_r1"),
    ],
)
def test_a_source_that_verl_scores_by_what_is_not_here_is_not_scored_otherwise_unless_the_user_says_so(
    source: str, by: str
) -> None:
    row = {"id": "r", "data_source": source, "answer": "2"}
    with pytest.raises(DataError, match=rf"data_source '{source}', which verl scores by its {by}.*; by_source knows"):
        by_source.score("2", row)
    assert by_source.score("2", row, sources={source: "exact"}) == 1.0


@pytest.mark.parametrize(
    ("function", "kwargs", "problem"),
    [
        ("length", {}, "most of length is not set; it must be a whole number"),
        ("length", {"most": 0}, "most = 0 of length must be at least 1"),
        ("length", {"most": 1.5}, "most = 1.5 of length must be a whole number"),
        ("length", {"most": 9, "buffer": 0}, "buffer = 0 of length must be a finite number above 0"),
        ("format", {"pattern": "("}, "pattern = ( of format must be a regular expression (missing )"),
        ("format", {"pattern": 3}, "pattern = 3 of format must be a text"),
        ("by_source", {"sources": {"a": "length"}}, "must be a mapping of names to gsm8k, exact, math"),
        ("math", {"method": "sympy"}, "method = sympy of math must be one of text, verify"),
        ("exact", {"case": False}, "case = False of exact is not known; it takes none"),
    ],
)
def test_arguments_that_make_no_sense_are_named(function: str, kwargs: dict[str, object], problem: str) -> None:
    (found,) = option_problems("reward.kwargs", function, kwargs)
    assert problem in found

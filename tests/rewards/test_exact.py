import pytest

from hpcrl.errors import DataError
from hpcrl.rewards.exact import score


@pytest.mark.parametrize(("response", "value"), [("yes", 1.0), (" yes\n", 1.0), ("Yes", 0.0), ("yes!", 0.0), ("", 0.0)])
def test_the_whole_text_must_match(response: str, value: float) -> None:
    assert score(response, {"answer": "yes "}) == value


def test_a_row_without_an_answer_is_named() -> None:
    with pytest.raises(DataError, match="'row-7' has the answer 7"):
        score("7", {"id": "row-7", "answer": 7})

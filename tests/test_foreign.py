import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.errors import UserCodeError
from hpcrl.foreign import LONGEST, plain, users_frames
from hpcrl.plugins import load


@given(st.text(max_size=200), st.integers(20, 100))
def test_a_text_from_outside_has_nothing_unseen_and_a_bounded_length(text: str, limit: int) -> None:
    shown = plain(text, limit)
    shown.encode()
    assert {unicodedata.category(letter) for letter in shown if letter not in "\n\t"}.isdisjoint({"Cc", "Cs"})
    # An escape has up to ten characters, and what is left out is said.
    assert len(shown) <= 10 * limit + 100


def test_a_long_text_is_shown_by_its_ends() -> None:
    shown = plain("begin" + "x" * 5_000_000 + "end")
    assert shown.startswith("begin") and shown.endswith("end") and len(shown) < LONGEST + 100
    assert "4983624 characters are left out here" in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("two\nlines\tand a tab, ü 漢", "two\nlines\tand a tab, ü 漢"),
        ("\x1b[2J\x07", "\\x1b[2J\\x07"),
        ("a\rb\x9bc", "a\\rb\\x9bc"),
        ("not UTF-8: \udcff", "not UTF-8: \\udcff"),
        ("right to left: \u202e", "right to left: \\u202e"),
    ],
)
def test_what_steers_a_terminal_is_escaped_and_the_rest_stays(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_of_a_traceback_only_the_frames_in_files_of_the_users_are_theirs() -> None:
    try:
        try:
            load("json:loads")("{")
        except ValueError as error:
            raise UserCodeError("no JSON") from error
    except UserCodeError as error:
        frames = users_frames(error)
    assert frames.count(__file__) == 2 and "json/decoder.py" not in frames
    assert frames.index('load("json:loads")') < frames.index('raise UserCodeError("no JSON")'), "the cause stands first"
    try:
        load("hpcrl.no_such:thing")
    except ModuleNotFoundError as error:
        assert users_frames(error).count("File ") == 1

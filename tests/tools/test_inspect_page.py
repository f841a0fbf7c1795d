"""What docs/inspect.md shows is what its commands print."""

import pytest
from inspect_page import BLOCK, PAGE, Scenes, page


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    return Scenes(tmp_path_factory.mktemp("scenes"))


def test_the_page_is_what_its_commands_print_now(scenes: Scenes) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(BLOCK.findall(text)) >= 6
    assert text == page(text, scenes), "write it again: make docs"


def test_a_word_that_is_changed_by_hand_is_put_right(scenes: Scenes) -> None:
    shown = f"before\n\n```\n$ hpcrl inspect RUN memory\n{'call':12} wrong\n```\n\nafter\n"
    made = page(shown, scenes)
    assert "wrong" not in made and "expected    measured\n" in made
    assert made.startswith("before\n\n```\n$ hpcrl inspect RUN memory\n") and made.endswith("```\n\nafter\n")

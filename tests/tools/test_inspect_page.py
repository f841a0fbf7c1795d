"""What docs/inspect.md, samples.md and troubleshooting.md show is what their commands print."""

import re
from pathlib import Path

import pytest
from inspect_page import BLOCK, PAGES, Scenes, page


def unsized(text: str) -> str:
    """Without how large files are that name the processor, whose name may be longer."""
    return re.sub(r"[0-9.]+ KiB, compared", "… KiB, compared", text)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    return Scenes(tmp_path_factory.mktemp("scenes"))


@pytest.mark.parametrize(("path", "blocks"), [*zip(PAGES, (7, 2, 1), strict=True)])
def test_a_page_is_what_its_commands_print_now(path: Path, blocks: int, scenes: Scenes) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(BLOCK.findall(text)) >= blocks
    assert unsized(text) == unsized(page(text, scenes)), "write it again: make docs"


def test_a_word_that_is_changed_by_hand_is_put_right(scenes: Scenes) -> None:
    shown = f"before\n\n```\n$ hpcrl inspect RUN memory\n{'call':12} wrong\n```\n\nafter\n"
    made = page(shown, scenes)
    assert "wrong" not in made and "expected    measured\n" in made
    assert made.startswith("before\n\n```\n$ hpcrl inspect RUN memory\n") and made.endswith("```\n\nafter\n")

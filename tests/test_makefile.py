"""The Makefile's targets name files that are there: pytest would say so only to whoever runs a rare target."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAMED = sorted(set(re.findall(r"(?:tests|bench|tools|examples)/[\w./-]+", (ROOT / "Makefile").read_text())))


@pytest.mark.parametrize("name", NAMED)
def test_a_file_that_the_makefile_names_is_there(name: str) -> None:
    assert (ROOT / name).exists()


@pytest.mark.parametrize("name", (ROOT / "tests" / "longest_first.txt").read_text().split())
def test_what_is_begun_first_is_there(name: str) -> None:
    assert (ROOT / name).exists()

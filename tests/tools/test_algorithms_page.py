"""The page of algorithms says what their declarations say."""

from algorithms_page import PAGE, page

from hpcrl.plugins import names
from hpcrl.recipes.algorithm import ALGORITHMS


def test_the_page_is_what_the_declarations_say_now():
    assert PAGE.read_text(encoding="utf-8") == page(), "write it again: make docs"


def test_every_algorithm_has_a_heading_a_drawing_and_its_calls():
    parts = page().split("\n## ")[1:]
    assert tuple(part.partition("\n")[0] for part in parts) == names(ALGORITHMS)
    assert all("```mermaid\nflowchart LR" in part and "| call | role | kind |" in part for part in parts)

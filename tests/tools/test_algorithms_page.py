"""The page of algorithms says what their declarations say."""

import json

import algorithms_page
import pytest
from algorithms_page import FORMULAS, GATES, PAGE, page

from hpcrl.plugins import names
from hpcrl.recipes.algorithm import ALGORITHMS


def test_the_page_is_what_the_declarations_say_now():
    assert PAGE.read_text(encoding="utf-8") == page(), "write it again: make docs"


def test_every_algorithm_has_a_heading_a_drawing_and_its_calls():
    parts = [part for part in page().split("\n## ")[1:] if part.partition("\n")[0] in names(ALGORITHMS)]
    assert tuple(part.partition("\n")[0] for part in parts) == names(ALGORITHMS)
    assert all("```mermaid\nflowchart LR" in part and "| call | role | kind |" in part for part in parts)


def test_every_text_of_formulas_is_on_the_page():
    whole, texts = page(), sorted(FORMULAS.glob("*.md"))
    assert texts and {text.stem for text in texts} <= {*names(ALGORITHMS), "policy", "differences"}
    assert all(text.read_text(encoding="utf-8") in whole for text in texts)


def test_what_gates_have_found_is_a_table(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(algorithms_page, "GATES", tmp_path / GATES.name)
    assert "## What they learn" not in page()
    seeds = [{"seed": seed, "before": 0.0, "after": 0.95 + seed / 100, "steps": 60 + seed} for seed in (1, 2)]
    gate = {"gate": "reverse-x", "algorithm": "x", "task": "eight letters", "goal": "≥ 95 %", "seeds": seeds}
    (tmp_path / GATES.name).write_text(json.dumps([gate]))
    assert "| reverse-x | eight letters | ≥ 95 % | 0 · 0 | 0.96 · 0.97 | 61 · 62 |" in page()

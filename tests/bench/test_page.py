"""The page of measurements is made of what is kept beside it: a part measured anew leaves the others as they are."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench(bench_file: Callable[[str], ModuleType]) -> ModuleType:
    return bench_file("run")


def test_the_page_is_of_what_is_kept(bench: ModuleType) -> None:
    assert (ROOT / "docs" / "performance.md").read_text() == bench.page_of(ROOT / "bench" / "measured")


def test_a_part_measured_on_a_fresh_clone_keeps_the_rest_of_the_page(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "measured").mkdir()
    for kept in (ROOT / "bench" / "measured").glob("*.json"):
        (tmp_path / "measured" / kept.name).write_text(kept.read_text())
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setattr(bench, "WORK", tmp_path / "runs")
    monkeypatch.setattr(bench, "MEASURED", tmp_path / "measured")
    monkeypatch.setattr(bench, "PAGE", tmp_path / "performance.md")
    monkeypatch.setattr(sys, "argv", ["run.py", "spills"])
    bench.main()
    before, after = (ROOT / "docs" / "performance.md").read_text(), (tmp_path / "performance.md").read_text()
    heads = [line for line in before.splitlines() if line.startswith("## ")]
    assert [line for line in after.splitlines() if line.startswith("## ")] == heads
    assert json.loads((tmp_path / "measured" / "spills.json").read_text())["measured"] in after

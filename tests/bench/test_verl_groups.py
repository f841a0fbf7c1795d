"""The bench of worker groups: what is called is what it says, and figures follow from the rounds of both sides."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from hpcrl.config.control import ControlConfig
from hpcrl.controller.rehearsal import rehearse
from hpcrl.recipes.algorithm import algorithm_of

SIDES = Path(__file__).parents[2] / "bench" / "sides"


def test_figures_are_ratios_to_the_faster_way_of_verls(bench_file: Callable[[str], ModuleType]) -> None:
    groups = bench_file("verl_groups")
    ours = {"no_rows": 0.002, "rows_there": 0.005, "rows_elsewhere": 0.03}
    theirs = {"no_rows": 0.004, "rows": 0.1, "rows_numpy": 0.05}
    figures = groups.figures_of({"hpcrl": [ours] * 3, "verl": [theirs] * 3})
    assert [figure.value for figure in figures] == pytest.approx([0.5, 0.1, 0.6])
    assert [figure.verdict for figure in figures] == ["**not met**", "met", "met"]
    assert figures[1].detail == "5.00 ms (5 … 5 ms in 3 rounds); verl 100.0 by torch.save and 50.0 by numpy ms"
    assert [figure.detail for figure in groups.figures_of({}, "no peers")] == ["no peers"] * 3


@pytest.mark.slow
def test_the_script_asks_for_the_same_whenever_it_runs_and_makes_what_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(SIDES))
    monkeypatch.setenv("HPCRL_BENCH_FOLDER", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(SIDES), prepend=":")
    for step in (1, 2, 3):
        (tmp_path / f"go-{step}").touch()
    name = f"{SIDES}/verl_groups_script.py:ALGORITHM"
    algorithm = algorithm_of(name)
    assert [*rehearse(algorithm.experiment(algorithm=name, control=ControlConfig(steps=3)))] == []
    assert (tmp_path / "took-3").exists()
    learner = algorithm.roles["actor"].methods
    made = learner.make(None, {"x": [None] * 2})
    (first, second) = learner.learn(None, made)["ratios"]
    assert first.dtype == "float32" and first.shape == second.shape == (2048,)

"""What the search is held to: all plans of small problems, and both plans of a case on workers that sleep."""

import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from hpcrl.placement.layouts import mesh_text


@pytest.fixture
def searching(bench_file: Callable[[str], ModuleType]) -> ModuleType:
    return bench_file("searching")


@pytest.mark.slow
def test_a_search_of_small_problems_is_held_to_all_of_their_plans(
    searching: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(searching, "SMALL", 3)
    optimal, worst = searching.against_brute_force(tmp_path)
    assert optimal.value == 100 and worst.value == 0


def test_the_paced_host_has_what_a_plan_says_and_takes_what_is_reckoned(searching: ModuleType, tmp_path: Path) -> None:
    of = searching.small(tmp_path / "small", random.Random(0))
    found = searching.in_simulated_order(searching.search_for(of, None))
    best = found.searched.best[0]
    candidate, expected_s = found.searched.candidate(best), found.searched.simulated_s[best.plan]
    paced = searching.on_workers_that_sleep(found, best, 1.0)
    assert {name: entry["mesh"] for name, entry in paced.calls.items()} == {
        name: mesh_text(spot.place.ranks) for name, spot in candidate.calls.items()
    }
    assert paced.actor.mesh == mesh_text(candidate.homes["actor"].place.ranks)
    assert searching.paced_step_s(paced) == pytest.approx(expected_s, rel=0.05)

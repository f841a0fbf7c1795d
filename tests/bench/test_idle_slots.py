"""How many slots wait for the longest response, counted by the real scheduler; the goal of the project's figures."""

from collections.abc import Callable
from types import ModuleType


def test_in_flight_few_slots_are_idle_and_by_whole_steps_half_of_them(bench_file: Callable[[str], ModuleType]) -> None:
    idle_slots = bench_file("idle_slots")
    assert 0.45 < idle_slots.idle_whole() < 0.6
    assert idle_slots.idle_in_flight() <= 0.15

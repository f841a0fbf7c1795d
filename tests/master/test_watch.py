"""When the master asks what becomes of its missing nodes, on a clock of the test's own."""

import threading
from collections.abc import Callable, Mapping

import pytest

from hpcrl.master.allocation import CONFIRM_S, LOOK_EVERY_S, Absence, AllocationWatch


class Says:
    """An allocation that says the same of every node, and counts how often it was asked."""

    def __init__(self, absence: Absence) -> None:
        self.absence = absence
        self.asked = 0

    def ends(self) -> Mapping[int, float]:
        return {}

    def replace_missing(self, missing: Mapping[int, tuple[int, int] | None]) -> Mapping[int, Absence]:
        self.asked += 1
        return dict.fromkeys(missing, self.absence)


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[AllocationWatch, float], None]:
    """So many seconds pass, and the master has its missing node looked after until nothing is being asked."""
    now = [1000.0]
    monkeypatch.setattr("hpcrl.master.allocation.time.monotonic", lambda: now[0])

    def pass_and_look(watch: AllocationWatch, seconds: float) -> None:
        now[0] += seconds
        for _ in range(2):
            watch.poll({3: None})
            for thread in threading.enumerate():
                if thread.name == "allocation":
                    thread.join(10)

    return pass_and_look


def test_that_a_node_is_gone_is_confirmed_soon(wait: Callable[[AllocationWatch, float], None]) -> None:
    allocation = Says(Absence("gone", "was cancelled"))
    watch = AllocationWatch(allocation, lambda event: None)
    wait(watch, 0.0)
    wait(watch, CONFIRM_S - 0.1)
    assert allocation.asked == 1 and watch.gone == {}
    wait(watch, 0.2)
    assert allocation.asked == 2 and watch.gone == {3: "was cancelled"}


def test_who_is_not_gone_is_asked_for_every_while(wait: Callable[[AllocationWatch, float], None]) -> None:
    allocation = Says(Absence("queued", "is pending"))
    watch = AllocationWatch(allocation, lambda event: None)
    wait(watch, 0.0)
    wait(watch, LOOK_EVERY_S - 0.1)
    assert allocation.asked == 1
    wait(watch, 0.2)
    assert allocation.asked == 2

"""When the master asks what becomes of its missing nodes, on a clock of the test's own."""

import threading
from collections.abc import Mapping

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


class Watched:
    """A watch over a missing node, and a clock."""

    def __init__(self, allocation: Says) -> None:
        self.now = 1000.0
        self.watch = AllocationWatch(allocation, lambda event: None, lambda: self.now)

    def wait(self, seconds: float) -> None:
        """So many seconds pass, and the missing node is seen to until nothing is being asked."""
        self.now += seconds
        for _ in range(2):
            self.watch.poll({3: None})
            for thread in threading.enumerate():
                if thread.name == "allocation":
                    thread.join(10)


def test_that_a_node_is_gone_is_confirmed_soon() -> None:
    allocation = Says(Absence("gone", "was cancelled"))
    watched = Watched(allocation)
    watched.wait(0.0)
    watched.wait(CONFIRM_S - 0.1)
    assert allocation.asked == 1 and watched.watch.gone == {}
    watched.wait(0.2)
    assert allocation.asked == 2 and watched.watch.gone == {3: "was cancelled"}


def test_that_an_agent_has_ended_is_confirmed_soon() -> None:
    watched = Watched(Says(Absence("ended", "was killed")))
    watched.wait(0.0)
    watched.wait(CONFIRM_S - 0.1)
    assert watched.watch.ended == {}
    watched.wait(0.2)
    assert watched.watch.ended == {3: "was killed"} and watched.watch.gone == {}


def test_who_is_not_gone_is_asked_for_every_while() -> None:
    allocation = Says(Absence("queued", "is pending"))
    watched = Watched(allocation)
    watched.wait(0.0)
    watched.wait(LOOK_EVERY_S - 0.1)
    assert allocation.asked == 1
    watched.wait(0.2)
    assert allocation.asked == 2

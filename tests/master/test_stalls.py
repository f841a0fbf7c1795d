"""Which calls take too long."""

import pytest

from hpcrl.events import CallStalled, CallWentOn
from hpcrl.master.stalls import Stalls
from hpcrl.progress import PartExecuted, PartSent


class Stage:
    def __init__(self, least_s: float = 60.0) -> None:
        self.now = 1000.0
        self.stalls = Stalls(least_s, lambda: self.now)

    def sent(self, step: int, call: str = "score") -> None:
        self.stalls.follow(PartSent(step, call, 0, (0,)))

    def done(self, step: int, call: str = "score") -> CallWentOn | None:
        return self.stalls.follow(PartExecuted(step, call, 0, (0,), 1.0, 1.0))

    def after(self, seconds: float) -> list[CallStalled]:
        self.now += seconds
        return list(self.stalls.found())

    def once(self, step: int, seconds: float) -> None:
        self.sent(step)
        self.now += seconds
        self.done(step)


@pytest.mark.parametrize(("before", "limit_s"), [([5.0], 60.0), ([30.0, 5.0], 90.0), ([40.0, *[5.0] * 20], 60.0)])
def test_a_call_stalls_after_the_least_or_three_times_the_longest_of_the_last_20(
    before: list[float], limit_s: float
) -> None:
    stage = Stage()
    for step, seconds in enumerate(before):
        stage.once(step, seconds)
    stage.sent(99)
    assert stage.after(limit_s - 0.1) == []
    (found,) = stage.after(1.1)
    assert (found.step, found.call, found.ranks) == (99, "score", (0,)) and found.seconds == limit_s + 1.0
    assert found.longest_s == max(before[-20:])


def test_it_is_told_again_when_it_has_taken_twice_as_long_and_not_before() -> None:
    stage = Stage()
    stage.once(1, 1.0)
    stage.sent(2)
    assert len(stage.after(60.0)) == 1 and stage.after(59.0) == [] and len(stage.after(1.0)) == 1
    assert stage.after(119.0) == [] and len(stage.after(1.0)) == 1


def test_the_first_of_its_kind_may_take_ten_times_the_least() -> None:
    stage = Stage()
    stage.sent(1)
    assert stage.after(599.0) == [] and len(stage.after(1.0)) == 1


def test_what_has_ended_does_not_stall_and_neither_does_a_move() -> None:
    stage = Stage()
    stage.once(1, 1.0)
    stage.sent(2)
    stage.done(2)
    stage.sent(1, "actor@1")
    stage.done(1, "actor@1")
    assert stage.after(10_000.0) == []


def test_of_what_was_told_of_it_is_told_that_it_has_ended_after_all() -> None:
    stage = Stage()
    stage.once(1, 1.0)
    stage.sent(2)
    assert len(stage.after(60.0)) == 1
    stage.now += 5.0
    assert stage.done(2) == CallWentOn(2, "score", 0, 65.0)
    stage.sent(3)
    assert stage.done(3) is None

"""How long steps take decides which is the last to be kept before an allocation ends."""

from itertools import accumulate

import pytest

from hpcrl.master.pace import Pace


@pytest.mark.parametrize("steps_s", [[1.0] * 9, [1.27, 2.31, 2.2, 2.1], [1.0, 1.0, 2.0, 1.0]])
def test_a_step_that_can_still_be_saved_is_kept_once_although_steps_become_slower(steps_s: list[float]) -> None:
    now = 0.0
    pace = Pace(lambda: now)
    kept = []
    for step, ends in enumerate(accumulate(steps_s), start=1):
        pace.opened(step)
        now = ends
        pace.closed(step)
        pace.time_left_s = 6.8 - now
        if pace.is_last_in_time():
            kept.append(step)
    assert len(kept) == 1
    assert sum(steps_s[: kept[0] + 1]) <= 6.8


def test_in_an_allocation_that_ends_late_none_is_the_last() -> None:
    now = 0.0
    pace = Pace(lambda: now)
    pace.opened(1)
    now = 1.0
    pace.closed(1)
    assert not pace.is_last_in_time()

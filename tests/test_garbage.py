"""When nobody looks for garbage, and how seldom a master does."""

import gc

from hpcrl.garbage import SELDOM, seldom_collected, uncollected


def test_what_is_changed_is_as_before_afterwards() -> None:
    before = gc.get_threshold()
    with seldom_collected(), uncollected():
        assert gc.get_threshold() == (SELDOM, *before[1:]) and not gc.isenabled()
    assert gc.get_threshold() == before and gc.isenabled()

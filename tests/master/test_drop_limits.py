"""A run ends where more of a step's samples are dropped than it may; what is recorded counts, whoever recorded it."""

import pytest

from hpcrl.errors import DataError, ExitCode
from hpcrl.master.drop_limits import DropLimits
from hpcrl.recipes.algorithm import DropLimit

LIMITS = DropLimits({"rew_inf": DropLimit("reward.max_dropped", 0.25)}, lambda _call: 2)


def test_a_share_is_that_of_all_parts_and_waits_for_them() -> None:
    few, many, all_ = ({"dropped": (dropped, 4.0)} for dropped in (0.0, 2.0, 4.0))
    LIMITS.refuse(1, "rew_inf", [all_])
    LIMITS.refuse(1, "rew_inf", [few, many])
    LIMITS.refuse(1, "actor_gen", [all_, all_])
    with pytest.raises(DataError) as raised:
        LIMITS.refuse(7, "rew_inf", [many, {"dropped": (1.0, 4.0)}])
    assert raised.value.exit_code == ExitCode.DATA
    assert "rew_inf of step 7 has dropped 3 of 8 samples, and reward.max_dropped = 0.25 allows 2" in str(raised.value)
    assert "raise reward.max_dropped" in str(raised.value)

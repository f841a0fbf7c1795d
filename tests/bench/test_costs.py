"""The cost model against what an engine takes of one thread's CPU: a profile, then calls of other lengths."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from support.experiments import write_inputs
from support.pool import gloo_pool


@pytest.fixture
def costs(bench_file: Callable[[str], ModuleType]) -> ModuleType:
    return bench_file("costs")


def test_calls_of_unseen_lengths_last_as_long_as_a_profile_of_the_same_minute_says(
    costs: ModuleType, tmp_path: Path
) -> None:
    write_inputs(tmp_path)
    grid = costs.Grid(tokens=(48, 288), lengths=(24, 96), rows=(1, 8), contexts=(16, 96), repeats=2)
    for disturbed in (False, True):  # once, other work on the same cores may make it slower than its profile
        with gloo_pool(1) as pool:
            found = costs.compared(pool, tmp_path, "small", ("d1",), grid, repeats=2, cpu=True)
        assert [it.kind for it in found] == ["inference", "train_step", "generate"]
        if max(it.error for it in found) <= 0.25:
            return
        assert not disturbed, found

"""The sides of the bench of layouts: two processes together do the work of one."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from support.pool import RankPool, gloo_pool


@pytest.fixture
def layouts(bench_file: Callable[[str], ModuleType]) -> ModuleType:
    return bench_file("layouts")


@pytest.fixture
def pool(layouts: ModuleType) -> Iterator[RankPool]:
    with gloo_pool(2) as ranks:
        yield ranks


@pytest.mark.parametrize("what", [pytest.param("training", marks=pytest.mark.slow), "generation"])
def test_sides_do_the_same_work(layouts: ModuleType, pool: RankPool, tmp_path: Path, what: str) -> None:
    batch = layouts.Batch(rows=4, prompt_tokens=3, shortest=1, longest=6, micro_batch_tokens=10, rounds=2)
    layouts.write_inputs(tmp_path / "inputs")
    for layout, times in {"": 2, "d2": 1, "p2": 1, "t2": 1}.items():
        (first, first_rounds), (second, second_rounds) = pool.run(
            layouts.timed, tmp_path / "inputs" / "model", what, layout, batch
        )
        assert second[0] == 0 < first[0]
        assert first[1] + second[1] == times * first[0], layout
        assert [len(of_side) for of_side in (*first_rounds, *second_rounds)] == [2] * 4

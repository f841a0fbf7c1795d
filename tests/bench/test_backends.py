"""The sides of the bench of backends end with the same losses, which they compare before they are timed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from support.pool import gloo_pool


@pytest.mark.slow
def test_sides_are_timed_that_do_the_same_work(bench_file: Callable[[str], ModuleType], tmp_path: Path) -> None:
    backends = bench_file("backends")
    batch = backends.Batch(rows=8, prompt_tokens=3, shortest=4, longest=6, micro_batch_tokens=20)
    backends.write_random_pretrained(tmp_path / "model", replace(backends.MODEL, blocks=2), seed=0)
    with gloo_pool(2) as pool:
        for side, given in ((backends.training, ()), (backends.saving, (tmp_path / "saved",))):
            found = pool.run(backends.timed, side, (tmp_path / "model", *given, batch), 1)
            assert [len(of_side) for of_rank in found for of_side in of_rank] == [1] * 2 * len(found[0])
        ((lasting, _), _), ((kept, _), _) = (
            pool.run(measure, tmp_path / "model", batch) for measure in (backends.held, backends.activations)
        )
    assert 0.6 < lasting < 0.7
    assert 0 < kept < 1
    assert len([*(tmp_path / "saved").rglob("actor.r*.safetensors")]) == 2 * 2

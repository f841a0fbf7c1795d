"""Models of transformers that FSDP2 shards, beside flat ones on as many ranks: the same bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.foreign_models import KINDS, PADDED, blended_sharded, learnt_sharded, save_library_model
from support.pool import gloo_pool

FAST = ("llama", "bloom")
FAST_OF_ZERO = (("zero2", "opt"), ("zero3", "opt"))
STACKED = ("mixtral", "olmoe")


@pytest.fixture(scope="module")
def pool() -> Any:
    with gloo_pool(2) as ranks:
        yield ranks


@pytest.mark.parametrize(
    "kind", [pytest.param(it, marks=() if it in FAST else pytest.mark.slow) for it in KINDS if it not in STACKED]
)
@pytest.mark.parametrize("dtype", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
def test_a_sharded_model_learns_and_says_what_a_flat_one_does(pool: Any, kind: str, dtype: str, tmp_path: Path) -> None:
    save_library_model(tmp_path, kind)
    flat, sharded = (pool.run(learnt_sharded, tmp_path, dtype, backend) for backend in ("native", "fsdp"))
    for ours, theirs in zip(flat, sharded, strict=True):
        assert theirs["padded"] == ours["padded"] == (kind in PADDED)
        assert (theirs["losses"], theirs["digest"]) == (ours["losses"], ours["digest"])
        assert theirs["parameters"] == ours["parameters"]
        np.testing.assert_array_equal(theirs["says"], ours["says"])
        for one, other in zip(theirs["generated"], ours["generated"], strict=True):
            assert np.array_equal(one, other)


@pytest.mark.parametrize("dtype", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("backend", ["fsdp", pytest.param("zero3", marks=pytest.mark.slow)])
def test_a_frozen_model_says_what_it_has_become(pool: Any, backend: str, dtype: str, tmp_path: Path) -> None:
    save_library_model(tmp_path, "llama")
    flat, sharded = (pool.run(blended_sharded, tmp_path, dtype, name) for name in ("native", backend))
    for ours, theirs in zip(flat, sharded, strict=True):
        assert theirs["digests"] == ours["digests"]
        np.testing.assert_array_equal(theirs["says"], ours["says"])
        assert not np.array_equal(*theirs["says"])


OF_ZERO = {"zero1": ("opt", "qwen2", "bloom"), "zero2": ("opt", "qwen2", "bloom"), "zero3": tuple(KINDS)}


@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        pytest.param(backend, kind, marks=() if (backend, kind) in FAST_OF_ZERO else pytest.mark.slow)
        for backend, kinds in OF_ZERO.items()
        for kind in kinds
        if kind not in STACKED
    ],
)
def test_zero_has_a_model_learn_what_a_flat_one_does_up_to_rounding(
    pool: Any, backend: str, kind: str, tmp_path: Path
) -> None:
    save_library_model(tmp_path, kind)
    flat, zero = (pool.run(learnt_sharded, tmp_path, "fp32", name) for name in ("native", backend))
    for ours, theirs in zip(flat, zero, strict=True):
        for key in ("losses", "says"):
            rtol = 1e-3 if kind == "mamba" else 1e-4  # its scan magnifies rounding
            np.testing.assert_allclose(theirs[key], ours[key], rtol=rtol, atol=1e-5)
        assert all(map(np.array_equal, theirs["generated"], ours["generated"]))

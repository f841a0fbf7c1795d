"""Models of transformers that FSDP2 shards, beside flat ones on as many ranks: the same bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.foreign_models import (
    KINDS,
    PADDED,
    blended_sharded,
    learnt_sharded,
    save_library_model,
    whole_buffers_kept,
)
from support.pool import gloo_pool

FAST = ("mixtral",)
FAST_OF_ZERO = (("zero3", "opt"),)


@pytest.fixture(scope="module")
def pool() -> Any:
    with gloo_pool(2) as ranks:
        yield ranks


@pytest.mark.parametrize("kind", [pytest.param(it, marks=() if it in FAST else pytest.mark.slow) for it in KINDS])
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


@pytest.mark.parametrize("backend", ["fsdp", pytest.param("zero3", marks=pytest.mark.slow)])
def test_of_the_whole_model_that_was_tried_out_nothing_is_kept(pool: Any, backend: str, tmp_path: Path) -> None:
    save_library_model(tmp_path, "llama")
    assert pool.run(whole_buffers_kept, tmp_path, backend) == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "experts"), [(2, 3), (2, 2), (3, 4)])
@pytest.mark.parametrize("backend", ["fsdp", "zero2", "zero3"])
def test_experts_that_ranks_cannot_share_equally_learn_the_same(
    backend: str, ranks: int, experts: int, tmp_path: Path
) -> None:
    save_library_model(tmp_path, "mixtral", num_local_experts=experts)
    with gloo_pool(ranks) as pool:
        flat, sharded = (pool.run(learnt_sharded, tmp_path, "fp32", name) for name in ("native", backend))
    for ours, theirs in zip(flat, sharded, strict=True):
        if backend == "fsdp":
            assert (theirs["losses"], theirs["digest"]) == (ours["losses"], ours["digest"])
            assert theirs["parameters"] == ours["parameters"]
        np.testing.assert_allclose(theirs["losses"], ours["losses"], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(theirs["says"], ours["says"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("backend", ["fsdp", pytest.param("zero3", marks=pytest.mark.slow)])
def test_a_frozen_model_says_what_it_has_become(pool: Any, backend: str, dtype: str, tmp_path: Path) -> None:
    save_library_model(tmp_path, "llama")
    flat, sharded = (pool.run(blended_sharded, tmp_path, dtype, name) for name in ("native", backend))
    for ours, theirs in zip(flat, sharded, strict=True):
        assert theirs["digests"] == ours["digests"]
        np.testing.assert_array_equal(theirs["says"], ours["says"])
        assert not np.array_equal(*theirs["says"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "mixtral", "bloom"])
@pytest.mark.parametrize("backend", ["fsdp", "zero3"])
def test_parameters_in_the_hosts_memory_learn_the_same_bits(pool: Any, backend: str, kind: str, tmp_path: Path) -> None:
    save_library_model(tmp_path, kind)
    here, there = (pool.run(learnt_sharded, tmp_path, "bf16", backend, what) for what in ("none", "parameters"))
    for ours, theirs in zip(here, there, strict=True):
        for key in ("losses", "digest", "parameters"):
            assert theirs[key] == ours[key], key
        np.testing.assert_array_equal(theirs["says"], ours["says"])
        assert all(map(np.array_equal, theirs["generated"], ours["generated"]))


OF_ZERO = {
    "zero1": ("opt", "qwen2", "bloom", "mixtral"),
    "zero2": ("opt", "qwen2", "bloom", "olmoe"),
    "zero3": tuple(KINDS),
}


@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        pytest.param(backend, kind, marks=() if (backend, kind) in FAST_OF_ZERO else pytest.mark.slow)
        for backend, kinds in OF_ZERO.items()
        for kind in kinds
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

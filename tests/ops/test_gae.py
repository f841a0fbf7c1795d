"""Compiled advantages against the numpy version, bit for bit, and both against the recursion of the paper."""

import ctypes
import itertools
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from hpcrl.ops import gae as module
from hpcrl.ops.gae import gae, in_numpy
from hpcrl.ops.library import compiled

ROOT = Path(__file__).parents[2]
BATCHES = ([], [0], [1], [0, 0, 3, 0], [5, 5, 5, 5], [1, 2, 33, 0, 7, 64, 1, 129], [9] * 3, [300, 1, 1, 1, 1, 1, 1])


def rollout(lengths, seed=1):
    draw = np.random.default_rng(seed)
    bounds = np.array([0, *itertools.accumulate(lengths)], np.int64)
    return draw.standard_normal(bounds[-1]), draw.standard_normal(bounds[-1]), bounds


def recursion(rewards, values, bounds, discount, gae_lambda):
    """As it is written in the paper, one sequence at a time."""
    advantages = np.zeros(len(rewards))
    for start, end in itertools.pairwise(bounds.tolist()):
        value = advantage = 0.0
        for t in reversed(range(start, end)):
            delta = (rewards[t] + discount * value) - values[t]
            advantages[t] = advantage = delta + (discount * gae_lambda) * advantage
            value = values[t]
    return advantages


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """csrc compiled as setup.py says, whether or not this installation was."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    library = tmp_path_factory.mktemp("csrc") / "compiled.so"
    flags = ["-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, ROOT / "csrc" / "gae.cpp", "-o", library], check=True)
    return ctypes.CDLL(str(library))


@pytest.mark.parametrize("lengths", BATCHES, ids=str)
@pytest.mark.parametrize(("discount", "gae_lambda"), [(1.0, 1.0), (0.9, 0.5), (0.99, 0.95), (0.99, 0.0)])
def test_compiled_and_numpy_advantages_are_the_recursions_bits(monkeypatch, built, lengths, discount, gae_lambda):
    batch = rollout(lengths)
    expected = recursion(*batch, discount, gae_lambda)
    monkeypatch.setattr(module, "compiled", lambda: built)
    for advantages, returns in (gae(*batch, discount, gae_lambda), in_numpy(*batch, discount, gae_lambda)):
        assert advantages.tobytes() == expected.tobytes()
        assert returns.tobytes() == (expected + batch[1]).tobytes()


def test_compiled_and_numpy_advantages_agree_on_many_random_batches(monkeypatch, built):
    monkeypatch.setattr(module, "compiled", lambda: built)
    draw = np.random.default_rng(3)
    for seed in range(100):
        batch = rollout(draw.integers(0, 40, draw.integers(1, 30)).tolist(), seed)
        for one, other in zip(gae(*batch, 0.97, 0.9), in_numpy(*batch, 0.97, 0.9), strict=True):
            assert one.tobytes() == other.tobytes()


def test_without_a_library_numpy_computes(monkeypatch):
    batch = rollout([4, 2])
    monkeypatch.setattr(module, "compiled", lambda: None)
    assert gae(*batch, 1.0, 0.95)[0].tobytes() == recursion(*batch, 1.0, 0.95).tobytes()


def test_an_installation_has_the_library_where_it_could_be_built():
    package = Path(module.__file__).parents[2]
    if not (package / "hpcrl.egg-info").is_dir() or shutil.which("g++") is None:
        pytest.skip("not an installation with a compiler")
    assert compiled() is not None


@pytest.mark.parametrize(
    ("rewards", "values", "bounds", "said"),
    [
        (np.zeros(3, np.float32), np.zeros(3), np.array([0, 3]), "rewards are float32"),
        (np.zeros(3), np.zeros(4), np.array([0, 3]), r"values are float64\[4\]"),
        (np.zeros(6)[::2], np.zeros(3), np.array([0, 3]), "rewards are"),
        (np.zeros(3), np.zeros(3), np.array([0, 3], np.int32), "bounds are int32"),
        (np.zeros(3), np.zeros(3), np.array([0, 4]), "rise from 0 to 3"),
        (np.zeros(3), np.zeros(3), np.array([0, 2, 1, 3]), "rise from 0 to 3"),
    ],
)
def test_arrays_that_would_be_read_beyond_their_end_are_refused(rewards, values, bounds, said):
    with pytest.raises(ValueError, match=said):
        gae(rewards, values, bounds, 1.0, 1.0)

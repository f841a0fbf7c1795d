"""Rows in memory."""

import numpy as np
import pytest

from hpcrl.data.samples import SequenceSample
from hpcrl.workers.sample_store import SampleStore


def sample(ids: str, key: str, scale: int) -> SequenceSample:
    return SequenceSample.from_rows(tuple(ids), {key: [np.full(ord(i) - 96, scale, np.int32) for i in ids]})


def test_rows_put_in_parts_are_taken_in_any_order() -> None:
    store = SampleStore()
    store.put(1, "gen", sample("ac", "y", 1))
    store.put(1, "gen", sample("b", "y", 2))
    store.put(1, "gen", sample("abc", "z", 3))
    taken = store.take(1, "gen", ["c", "b", "a"], ["y", "z"])
    assert taken.ids == ("c", "b", "a")
    assert [row.tolist() for row in taken.rows("y")] == [[1, 1, 1], [2, 2], [1]]
    assert [row.tolist() for row in taken.rows("z")] == [[3, 3, 3], [3, 3], [3]]


def test_missing_rows_are_named() -> None:
    store = SampleStore()
    store.put(1, "gen", sample("a", "y", 1))
    with pytest.raises(KeyError, match="y of b"):
        store.take(1, "gen", ["a", "b"], ["y"])


def test_released_steps_are_gone() -> None:
    store = SampleStore()
    store.put(1, "gen", sample("a", "y", 1))
    store.put(2, "gen", sample("a", "y", 1))
    store.forget(2)
    assert store.take(2, "gen", ["a"], ["y"]).ids == ("a",)
    with pytest.raises(KeyError):
        store.take(1, "gen", ["a"], ["y"])

"""Rows in memory."""

import numpy as np
import pytest

from hpcrl.data.samples import SequenceSample
from hpcrl.workers.sample_store import SampleStore
from hpcrl.workers.transport import assemble, from_wire, to_wire


def sample(ids: str, key: str, scale: int) -> SequenceSample:
    return SequenceSample.from_rows(tuple(ids), {key: [np.full(ord(i) - 96, scale, np.int32) for i in ids]})


def test_rows_put_in_parts_are_taken_in_any_order() -> None:
    store = SampleStore()
    store.put(1, sample("ac", "y", 1))
    store.put(1, sample("b", "y", 2))
    store.put(1, sample("abc", "z", 3))
    taken = store.take(1, ["c", "b", "a"], ["y", "z"])
    assert taken.ids == ("c", "b", "a")
    assert [row.tolist() for row in taken.rows("y")] == [[1, 1, 1], [2, 2], [1]]
    assert [row.tolist() for row in taken.rows("z")] == [[3, 3, 3], [3, 3], [3]]


def test_missing_rows_are_named() -> None:
    store = SampleStore()
    store.put(1, sample("a", "y", 1))
    with pytest.raises(KeyError, match="y of b"):
        store.take(1, ["a", "b"], ["y"])


def test_released_steps_are_gone() -> None:
    store = SampleStore()
    store.put(1, sample("a", "y", 1))
    store.put(2, sample("a", "y", 1))
    store.release(2)
    assert store.take(2, ["a"], ["y"]).ids == ("a",)
    with pytest.raises(KeyError):
        store.take(1, ["a"], ["y"])


def test_a_sample_survives_the_wire_bit_for_bit() -> None:
    before = SequenceSample.from_rows(
        ("a", "b"), {"v": [np.array([[1.5, np.nan]]), np.zeros((0, 2))], "f": [np.array([True]), np.array([False])]}
    )
    frames = [before.data[key].tobytes() for key in before.keys]
    after = from_wire(to_wire(before), frames)
    assert after.meta == before.meta
    assert all(after.data[key].tobytes() == before.data[key].tobytes() for key in before.keys)


def test_pieces_with_some_rows_of_some_keys_become_one_sample() -> None:
    pieces = [sample("ca", "y", 1), sample("abc", "z", 2), sample("b", "y", 3)]
    whole = assemble(("a", "b", "c"), pieces)
    assert whole.ids == ("a", "b", "c")
    assert [row.tolist() for row in whole.rows("y")] == [[1], [3, 3], [1, 1, 1]]
    assert [len(row) for row in whole.rows("z")] == [1, 2, 3]


def test_rows_of_a_key_may_come_with_other_keys_from_one_holder_and_alone_from_another() -> None:
    both = sample("b", "y", 1).merge(sample("b", "z", 2))
    whole = assemble(("a", "b"), [sample("a", "y", 3), both, sample("a", "z", 4)])
    assert [row.tolist() for row in whole.rows("y")] == [[3], [1, 1]]
    assert [row.tolist() for row in whole.rows("z")] == [[4], [2, 2]]


def test_no_pieces_give_a_sample_without_keys() -> None:
    assert assemble((), []).keys == ()

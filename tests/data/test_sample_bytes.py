import numpy as np

from hpcrl.data.form import Form
from hpcrl.data.sample_bytes import ALIGNED, from_bytes, to_bytes
from hpcrl.data.samples import SequenceSample


def test_a_batch_comes_back_as_it_was_with_arrays_that_lie_where_a_library_wants_them() -> None:
    batch = SequenceSample.from_rows(
        ["a", "b"],
        {"x": [np.arange(3, dtype=np.int32), np.arange(5, dtype=np.int32)], "y": [np.ones((1, 2)), np.zeros((0, 2))]},
    )
    back = from_bytes(to_bytes(batch))
    assert back.meta == batch.meta
    for key in batch.keys:
        assert back.data[key].tobytes() == batch.data[key].tobytes()
    begins = {array.ctypes.data % ALIGNED for array in back.data.values()}
    assert len(begins) == 1, "as the whole string does"


def test_an_empty_batch_keeps_the_forms_of_its_keys() -> None:
    empty = SequenceSample.empty({"x": Form("int64"), "y": Form("float32", (3,))})
    back = from_bytes(to_bytes(empty))
    assert back.meta == empty.meta and back.data["y"].shape == (0, 3)

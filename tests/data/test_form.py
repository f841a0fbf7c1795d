"""What is known of rows before there are arrays, against numpy."""

import numpy as np
import pytest

from hpcrl.data.form import Form


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"])
def test_a_number_has_as_many_bytes_as_numpy_gives_it(dtype: str) -> None:
    assert Form(dtype).number_bytes == np.dtype(dtype).itemsize

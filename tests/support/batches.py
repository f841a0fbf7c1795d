"""Random batches, and equality of batches, for tests."""

import numpy as np

from hpcrl.data.samples import SequenceSample


def random_batch(seed: int, count: int, first: int = 0) -> SequenceSample:
    """Tokens, floats with a trailing shape, flags, and rows of two sub-sequences; some rows are empty."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 6, count)
    rows = {
        "tokens": [rng.integers(0, 99, n, dtype=np.int32) for n in lengths],
        "hidden": [rng.standard_normal((n, 2)).astype(np.float32) for n in lengths],
        "finished": [rng.integers(0, 2, 1).astype(bool) for _ in lengths],
        "pair": [[rng.standard_normal(n), rng.standard_normal(n + 1)] for n in lengths],
    }
    return SequenceSample.from_rows([f"s{first + i}" for i in range(count)], rows)


def assert_same(left: SequenceSample, right: SequenceSample) -> None:
    assert left.meta == right.meta
    for key in left.keys:
        np.testing.assert_array_equal(left.data[key], right.data[key])

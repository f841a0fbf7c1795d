"""What rows add up to is exact, in whatever pieces they lie."""

import math
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hpcrl.data import totals
from hpcrl.data.samples import SequenceSample
from hpcrl.data.totals import Total, mean_of, total_of

NUMBERS = {
    "float32": st.floats(width=32, allow_infinity=False),
    "float64": st.floats(-1e300, 1e300) | st.just(math.nan),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "bool": st.booleans(),
}


def sample_of(*rows: np.ndarray) -> SequenceSample:
    return SequenceSample.from_rows(tuple(map(str, range(len(rows)))), {"r": rows})


def slow_mean(rows: list[np.ndarray]) -> float:
    """By fractions, of which none is rounded."""
    numbers = [float(number) for row in rows for number in row.ravel().tolist() if number == number]
    return float(sum(map(Fraction, numbers))) / len(numbers) if numbers else math.nan


def bits(number: float) -> bytes:
    return np.float64(number).tobytes() if number == number else b"nan"


@st.composite
def rows_in_pieces(draw):
    """Rows, the same in another order and in pieces, and how often each piece counts."""
    dtype = draw(st.sampled_from(sorted(NUMBERS)))
    shapes = draw(st.lists(st.integers(0, 5), min_size=1, max_size=8))
    rows = [draw(arrays(np.dtype(dtype), (length, 2), elements=NUMBERS[dtype])) for length in shapes]
    mixed = draw(st.permutations(rows))
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    pieces = [mixed[first:end] for first, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    return rows, [(piece, draw(st.integers(1, 3))) for piece in pieces]


@given(rows_in_pieces(), st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_the_mean_of_pieces_is_that_of_all_numbers_to_the_bit(drawn, at_once):
    rows, pieces = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(totals, "AT_ONCE", at_once)
        found = [(total_of(sample_of(*piece)), times) for piece, times in pieces if piece]
    assert bits(mean_of([(total, 1) for total, _ in found])) == bits(slow_mean(rows))
    assert bits(mean_of(found)) == bits(slow_mean([row for piece, times in pieces for row in piece * times]))


def test_a_total_of_many_numbers_is_small_and_is_not_rounded():
    generator = np.random.default_rng(3)
    numbers = generator.normal(size=200_001) * 10.0 ** generator.integers(-300, 300, 200_001)
    total = total_of(sample_of(numbers))
    assert total.count == len(numbers) and len(total.parts) < 50
    assert sum(map(Fraction, total.parts)) == sum(map(Fraction, numbers.tolist()))
    tame = total_of(sample_of(generator.normal(size=200_001).astype(np.float32)))
    assert len(msgspec.msgpack.encode(tame)) < 64


@pytest.mark.parametrize(
    ("rows", "mean"),
    [
        ([[1.0, math.inf], [2.0]], math.inf),
        ([[-math.inf], [1e308, 1.0]], -math.inf),
        ([[math.inf], [-math.inf]], math.nan),
        ([[1e308, 1e308], [1.0]], math.inf),
        ([[-1e308], [-1e308]], -math.inf),
        ([[math.nan], []], math.nan),
        ([[math.nan, 3.0], [5.0]], 4.0),
        ([[-0.0], [0.0]], 0.0),
    ],
)
def test_what_has_no_sum_is_infinite_or_no_number(rows, mean):
    apart = [(total_of(sample_of(np.array(row))), 1) for row in rows]
    together = [(total_of(sample_of(*(np.array(row) for row in rows))), 1)]
    assert bits(mean_of(apart)) == bits(mean_of(together)) == bits(mean)


def test_a_total_survives_the_wire_bit_for_bit():
    for parts in ((0.1, 5e-324), (math.inf,), (-0.1, 1e-18, 3e-36)):
        total = Total(parts, 7)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(total), type=Total) == total

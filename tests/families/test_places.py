"""What two places have in common, against sets of numbers."""

import numpy as np

from hpcrl.families.places import Place, Span, common, packed, whole


def numbers(place: Place) -> list[int]:
    rows, columns = np.arange(place.rows)[:, None] * place.stride, np.arange(place.run)
    return (place.first + rows + columns).reshape(-1).tolist()


def where(span: Span) -> list[int]:
    rows, columns = np.arange(span.place.rows)[:, None] * span.step, np.arange(span.place.run)
    return (span.offset + rows + columns).reshape(-1).tolist()


def random_span(rng: np.random.Generator, width: int, height: int) -> Span:
    """A rectangle of a matrix, or a stretch of it, somewhere in a buffer."""
    if rng.random() < 0.5:
        first, last = sorted(int(n) for n in rng.integers(0, width * height + 1, 2))
        return whole("p", last - first + 1).moved(5).part(0, 1) if first == last else stretch(first, last)
    row, column = int(rng.integers(height)), int(rng.integers(width))
    rows, run = int(rng.integers(1, height - row + 1)), int(rng.integers(1, width - column + 1))
    whole_row = rows == 1
    return Span(Place("p", row * width + column, rows, run, run if whole_row else width), 3, run + int(rng.integers(3)))


def stretch(first: int, last: int) -> Span:
    return Span(Place("p", first, 1, last - first, last - first), 2, last - first)


def test_what_two_places_have_in_common_is_in_both_once_and_can_be_found() -> None:
    rng = np.random.default_rng(2)
    for _ in range(2000):
        width, height = (int(n) for n in rng.integers(1, 8, 2))
        one, other = (random_span(rng, width, height) for _ in range(2))
        found = list(common(one.place, other.place))
        together = [number for place in found for number in numbers(place)]
        assert len(found) <= 3
        assert sorted(together) == sorted({*numbers(one.place)} & {*numbers(other.place)})
        for span in (one, other):
            at = dict(zip(numbers(span.place), where(span), strict=True))
            assert [position for place in found for position in where(span.at(place))] == [at[n] for n in together]
            assert max(where(span)) + 1 == span.stop


def test_other_parameters_have_nothing_in_common() -> None:
    assert not [*common(whole("p", 3).place, whole("q", 3).place)]


def test_what_is_packed_lies_without_gaps_in_the_same_order() -> None:
    spans = [Span(Place("p", 3, 4, 2, 9), 11, 5), Span(Place("q", 0, 1, 7, 7), 2, 7, owned=False)]
    kept = packed(spans)
    assert [span.place for span in kept] == [span.place for span in spans]
    assert [position for span in kept for position in where(span)] == list(range(15))
    assert [span.owned for span in kept] == [True, False]

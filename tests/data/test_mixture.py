"""Several sources in one order, against counting."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.data.cutting import ByRows, ByTokens
from hpcrl.data.mixture import MixedIds, MixedOrder, Turns
from hpcrl.data.order import group_of, row_of

WEIGHTS = st.lists(st.integers(1, 40).map(lambda tenths: tenths / 10), min_size=1, max_size=6)


@settings(max_examples=60)
@given(WEIGHTS)
def test_every_prefix_has_each_source_to_within_one_row(weights: list[float]) -> None:
    exact = [Fraction(str(weight)) for weight in weights]
    had = [0] * len(weights)
    for position, turn in enumerate(Turns(weights).of(0, 500), 1):
        had[turn] += 1
        assert all(abs(own - position * share / sum(exact)) < 1 for own, share in zip(had, exact, strict=True))


@settings(max_examples=30)
@given(WEIGHTS, st.integers(0, 3000))
def test_a_turn_follows_from_its_position_alone(weights: list[float], position: int) -> None:
    straight = Turns(weights)
    turns = straight.of(0, 3100)
    alone = Turns(weights)
    assert alone.of(position, position + 100) == turns[position : position + 100]
    assert alone.had(position) == [turns[:position].count(i) for i in range(len(weights))]


def test_weights_that_are_no_simple_shares_are_kept_exactly() -> None:
    turns = Turns([0.1, 0.2, 0.7000001])
    assert (
        turns.had(20_000) == [2000, 4000, 14000]
        or max(abs(a - b) for a, b in zip(turns.had(20_000), [2000, 4000, 14000], strict=True)) <= 1
    )


def order(batch_size: int = 4, **sources: int) -> MixedOrder:
    rows = MixedIds({name: [f"{i}" for i in range(count)] for name, count in sources.items()}, {"a": 3, "b": 1})
    return MixedOrder(rows, ByRows(batch_size), seed=5, samples_per_prompt=1)


def test_each_source_is_read_whole_before_it_is_read_again() -> None:
    mixed, cursor, seen = order(a=10, b=7), MixedOrder.start, []
    for _ in range(70):
        batch = mixed.batch_at(cursor)
        assert len(batch.ids) == 4 and len(set(batch.ids)) == 4
        cursor, seen = batch.next_cursor, [*seen, *batch.ids]
    for name, count in (("a", 10), ("b", 7)):
        own = [sample for sample in seen if sample.startswith(f"{name}/")]
        for epoch in range(len(own) // count):
            of_epoch = own[epoch * count : (epoch + 1) * count]
            assert sorted(of_epoch) == sorted(f"{name}/{i}@{epoch}" for i in range(count))
    assert len(seen) == 280 and sum(sample.startswith("a/") for sample in seen) == 210


def test_a_step_can_be_asked_for_again_from_its_cursor() -> None:
    straight, cursor, batches = order(a=10, b=7), 0, []
    for _ in range(20):
        batches.append(straight.batch_at(cursor))
        cursor = batches[-1].next_cursor
    for i in np.random.default_rng(0).permutation(20).tolist():
        assert order(a=10, b=7).batch_at(4 * i) == batches[i]


def test_an_epoch_is_over_once_every_source_was_read_as_often() -> None:
    mixed = order(a=3, b=2)  # three of four are a's: b's second row is in the eighth place
    assert [mixed.epochs_before(cursor) for cursor in (0, 4, 5, 8, 16)] == [0, 0, 0, 1, 2]
    assert [mixed.batch_at(cursor).ends_epoch for cursor in (0, 4, 8, 12)] == [False, True, False, True]


def test_samples_of_a_row_have_their_source_in_their_names() -> None:
    rows = MixedIds({"a": ["x/y@z", "w"], "b": ["w"]}, {"a": 1, "b": 1})
    assert list(rows) == ["a/x/y@z", "a/w", "b/w"] == [rows[i] for i in range(3)] and rows[-1] == "b/w"
    assert "a/w" in rows and "b/x/y@z" not in rows and "c/w" not in rows and len(rows) == 3
    mixed = MixedOrder(rows, ByRows(3), seed=1, samples_per_prompt=2)
    samples = mixed.batch_at(0).ids
    assert len(samples) == 6 and len({group_of(sample) for sample in samples}) == 3
    assert {row_of(sample) for sample in samples} <= set(rows)


def test_a_step_by_tokens_has_the_rows_of_the_same_order_that_fit() -> None:
    rows = MixedIds(
        {name: [f"{i}" for i in range(count)] for name, count in {"a": 10, "b": 7}.items()}, {"a": 3, "b": 1}
    )
    lengths = np.random.default_rng(3).integers(1, 20, 17)
    of_row = dict(zip(rows, lengths.tolist(), strict=True))
    by_tokens, by_rows = (MixedOrder(rows, cutting, seed=5) for cutting in (ByTokens(24, lengths), ByRows(1)))
    cursor = 0
    for _ in range(40):
        step = by_tokens.batch_at(cursor)
        count, tokens = len(step.ids), sum(of_row[row_of(sample)] for sample in step.ids)
        assert step == by_rows.draw(cursor, count) and tokens <= 24
        (more,) = by_rows.draw(cursor + count, 1).ids
        assert tokens + of_row[row_of(more)] > 24
        cursor = step.next_cursor
    assert MixedOrder(rows, ByTokens(1, lengths), seed=5).batch_at(4).next_cursor == 5


@pytest.mark.parametrize("weights", [[1.0], [1e-3, 1.0]])
def test_rare_sources_have_their_turn(weights: list[float]) -> None:
    assert Turns(weights).had(1001)[0] in ((1001,) if len(weights) == 1 else (1,))

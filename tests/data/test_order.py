import hashlib
import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from hpcrl.data.cutting import ByRows
from hpcrl.data.order import SampleOrder, StepSamples, group_of, row_of, sample_ids, shuffled_minibatches

ROWS = [f"r{i}" for i in range(10)]


def batches(order: SampleOrder, count: int, cursor: int = SampleOrder.start) -> list[StepSamples]:
    found = []
    for _ in range(count):
        found.append(order.batch_at(cursor))
        cursor = found[-1].next_cursor
    return found


def names(order: SampleOrder, epoch: int, rows: Sequence[str] = ROWS) -> tuple[str, ...]:
    return tuple(rows[at] for at in order.epoch(epoch))


def test_every_row_comes_once_per_epoch_and_batches_end_with_it() -> None:
    order = SampleOrder(ROWS, ByRows(4), seed=3)
    assert order.batches(5) == 15
    for epoch, found in itertools.groupby(batches(order, 9), key=lambda batch: batch.epoch):
        of_epoch = list(found)
        assert [len(batch.ids) for batch in of_epoch] == [4, 4, 2]
        assert [batch.ends_epoch for batch in of_epoch] == [False, False, True]
        assert sorted(row_of(sample) for batch in of_epoch for sample in batch.ids) == sorted(ROWS)
        assert all(sample.endswith(f"@{epoch}") for batch in of_epoch for sample in batch.ids)


def test_the_last_rows_of_an_epoch_can_be_left_out() -> None:
    order = SampleOrder(ROWS, ByRows(4, drop_last=True), seed=3)
    assert order.batches(5) == 10
    found = batches(order, 6)
    assert [(len(batch.ids), batch.epoch, batch.ends_epoch) for batch in found[:4]] == [
        (4, 0, False), (4, 0, True), (4, 1, False), (4, 1, True),
    ]  # fmt: skip
    kept = batches(SampleOrder(ROWS, ByRows(4), seed=3), 9)
    assert [batch.ids for batch in found] == [batch.ids for batch in kept if len(batch.ids) == 4]
    whole = SampleOrder(ROWS, ByRows(5, drop_last=True), seed=3)
    assert batches(whole, 5) == batches(SampleOrder(ROWS, ByRows(5), seed=3), 5)


def test_a_run_may_begin_to_leave_out_last_rows_where_few_are_left() -> None:
    cursor = batches(SampleOrder(ROWS, ByRows(4), seed=3), 2)[-1].next_cursor
    following = SampleOrder(ROWS, ByRows(4, drop_last=True), seed=3).batch_at(cursor)
    assert (following.epoch, len(following.ids), following.next_cursor) == (1, 4, 14)


def test_a_batch_can_be_asked_for_again_from_its_cursor() -> None:
    straight = batches(SampleOrder(ROWS, ByRows(4), seed=3), 8)
    for i in range(7):
        assert batches(SampleOrder(ROWS, ByRows(4), seed=3), 7 - i, straight[i].next_cursor) == straight[i + 1 :]


def test_the_order_differs_by_epoch_and_seed_and_not_by_anything_else() -> None:
    np.random.seed(0)
    first = SampleOrder(ROWS, ByRows(4), seed=3)
    orders = {names(first, 0), names(first, 1), names(SampleOrder(ROWS, ByRows(4), seed=4), 0)}
    assert len(orders) == 3
    np.random.seed(1)
    backwards = SampleOrder(ROWS[::-1], ByRows(7), seed=3, samples_per_prompt=2)
    assert names(backwards, 0, ROWS[::-1]) == names(first, 0)


def test_the_order_is_what_it_has_always_been() -> None:
    assert " ".join(names(SampleOrder(ROWS, ByRows(4), seed=1), 0)) == "r4 r6 r2 r5 r3 r8 r9 r7 r1 r0"


def test_without_shuffling_rows_keep_the_order_of_the_file() -> None:
    order = SampleOrder(ROWS, ByRows(4), seed=1, shuffle=False)
    assert names(order, 0) == names(order, 5) == tuple(ROWS)


def test_all_orders_of_three_rows_are_about_equally_frequent() -> None:
    order = SampleOrder(["a", "b", "c"], ByRows(1), seed=0)
    seen = [names(order, epoch, "abc") for epoch in range(3000)]
    counts = [seen.count(permutation) for permutation in itertools.permutations("abc")]
    assert sum(counts) == 3000 and all(400 < count < 600 for count in counts)


def test_samples_of_one_prompt_are_told_apart_and_lead_back_to_their_row() -> None:
    assert sample_ids(["a", "b@c#1"], 2) == ("a@2", "b@c#1@2")
    several = sample_ids(["a", "b@c#1"], 0, 2)
    assert several == ("a@0#0", "a@0#1", "b@c#1@0#0", "b@c#1@0#1")
    assert [row_of(sample) for sample in several] == ["a", "a", "b@c#1", "b@c#1"]
    assert SampleOrder(ROWS, ByRows(2), seed=0, samples_per_prompt=3).batch_at(0).next_cursor == 2


@pytest.mark.parametrize("wrong", [{"rows": []}, {"samples_per_prompt": 0}, {"cutting": ByRows(11, drop_last=True)}])
def test_an_order_of_nothing_is_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match="no batch"):
        SampleOrder(**{"rows": ROWS, "cutting": ByRows(1), "seed": 0, **wrong})


@pytest.mark.parametrize("samples", [1, 3])
def test_rows_are_drawn_on_into_the_next_epochs_and_none_is_left_out(samples: int) -> None:
    order = SampleOrder(ROWS, ByRows(4, drop_last=True), seed=3, samples_per_prompt=samples)
    every = [sample for epoch in range(5) for sample in sample_ids(names(order, epoch), epoch, samples)]
    cursor, taken = 0, []
    for rows in (4, 3, 9, 1, 13, 10):
        drawn = order.draw(cursor, rows)
        assert drawn.next_cursor == cursor + rows and len(drawn.ids) == rows * samples
        assert drawn.epoch == cursor // 10 and drawn.ends_epoch == (drawn.next_cursor // 10 > drawn.epoch)
        cursor, taken = drawn.next_cursor, [*taken, *drawn.ids]
    assert taken == every[: 40 * samples]


def test_the_samples_of_a_row_in_an_epoch_are_a_group() -> None:
    for row in ("r1", "r@2", "r#3"):
        for epoch in (0, 12):
            groups = {group_of(sample) for sample in sample_ids([row], epoch, 3)}
            assert groups == {f"{row}@{epoch}"} == {group_of(sample) for sample in sample_ids([row], epoch)}


def test_the_order_is_that_of_whole_hashes_of_seed_epoch_and_id() -> None:
    rows = [f"row-{i}" for i in range(500)]

    def place(row: str) -> bytes:
        return hashlib.blake2b(f"7\n2\n{row}".encode(), digest_size=16).digest()

    assert names(SampleOrder(rows, ByRows(4), seed=7), 2, rows) == tuple(sorted(rows, key=place))


def test_equal_first_halves_of_hashes_leave_the_order_to_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    class Alike:
        """Hashes whose first bytes are the last two letters of the row, so that many are equal."""

        def __init__(self, text: bytes, digest_size: int) -> None:
            self._text = text

        def copy(self) -> "Alike":
            return Alike(self._text, 16)

        def update(self, text: bytes) -> None:
            self._text += text

        def digest(self) -> bytes:
            return self._text[-1:] * 8 + self._text[-2:-1] * 8

    monkeypatch.setattr(hashlib, "blake2b", Alike)
    rows = [f"{i:02d}" for i in range(40)]
    order = SampleOrder(rows, ByRows(4), seed=7)
    assert names(order, 0, rows) == tuple(sorted(rows, key=lambda row: (row[1], row[0])))


@pytest.mark.parametrize("whole_rows", [False, True])
def test_a_pass_that_is_shuffled_has_every_sample_once_in_an_order_of_its_own(whole_rows):
    ids = sample_ids([f"r{i}" for i in range(9)], 2, 4)
    cut = (ids[:12], ids[12:24], ids[24:])
    turns = [shuffled_minibatches(cut, 7, 3, turn, whole_rows=whole_rows) for turn in range(3)]
    assert len(set(turns)) == 3
    for turn in turns:
        assert [len(part) for part in turn] == [12, 12, 12]
        assert sorted(sample for part in turn for sample in part) == sorted(ids)
        rows = [{group_of(sample) for sample in part} for part in turn]
        assert (sum(map(len, rows)) == 9) == whole_rows
    assert turns[1] == shuffled_minibatches(cut, 7, 3, 1, whole_rows=whole_rows)
    assert turns[1] != shuffled_minibatches(cut, 8, 3, 1, whole_rows=whole_rows)
    assert turns[1] != shuffled_minibatches(cut, 7, 4, 1, whole_rows=whole_rows)
    assert shuffled_minibatches((), 7, 3, 1, whole_rows=whole_rows) == (), "nothing was chosen"

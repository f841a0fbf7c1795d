import random

import pytest

from hpcrl.data.slots import Move, Scheduler, rounded_rows


def simulate(lengths, ends, slots, prefill_tokens):
    """Rows end after `ends[row]` steps. Returns each row's slots over time, and the batch sizes."""
    scheduler = Scheduler(lengths, slots, prefill_tokens)
    seats: dict[int, int] = {}
    left = dict(enumerate(ends))
    admissions, sizes = [], []
    while not scheduler.done:
        first = scheduler.active
        rows = scheduler.admit().rows
        admissions.append(rows)
        seats |= {first + place: row for place, row in enumerate(rows)}
        stepping = range(first, first + len(rows)) if rows else range(scheduler.active)
        sizes.append(scheduler.active)
        for slot in stepping:
            left[seats[slot]] -= 1
        ended = [slot for slot in stepping if not left[seats[slot]]]
        moves = scheduler.retire(ended)
        assert not {move.source for move in moves} & {move.target for move in moves}
        for slot in ended:
            del seats[slot]
        for move in moves:
            seats[move.target] = seats.pop(move.source)
        assert sorted(seats) == list(range(scheduler.active))
    assert not seats
    assert not any(left.values())
    return [rows for rows in admissions if rows], sizes


@pytest.mark.parametrize("seed", range(30))
def test_every_row_is_served_once_in_order_without_holes(seed):
    draw = random.Random(seed)
    rows = draw.randint(1, 40)
    lengths = [draw.randint(1, 30) for _ in range(rows)]
    slots, prefill_tokens = draw.randint(1, 12), draw.randint(1, 60)
    admissions, sizes = simulate(lengths, [draw.randint(1, 9) for _ in range(rows)], slots, prefill_tokens)
    assert [row for group in admissions for row in group] == list(range(rows))
    assert max(sizes) <= slots
    for group in admissions:
        assert len(group) == 1 or sum(lengths[row] for row in group) <= prefill_tokens


def test_a_prompt_longer_than_a_prefill_goes_alone():
    assert simulate([2, 50, 2], [1, 1, 1], 8, 10)[0] == [[0], [1], [2]]


def test_a_prompt_of_rows_that_enter_together_counts_once():
    scheduler = Scheduler([6, 6, 6, 3, 6], 8, 10, prompts=[0, 0, 0, 3, 4])
    assert [scheduler.admit().rows, scheduler.admit().rows] == [[0, 1, 2, 3], [4]]


def test_a_row_whose_prompt_is_in_a_slot_copies_it_from_where_it_is_now():
    scheduler = Scheduler([6] * 6, 3, 10, prompts=[0, 1, 1, 1, 0, 1])
    assert scheduler.admit() == ([0], [], [])
    assert scheduler.admit() == ([1, 2], [], [])
    assert scheduler.retire([0, 1]) == [Move(2, 0)]
    assert scheduler.admit() == ([4], [3], [0])
    assert scheduler.awaited() == {1}
    assert scheduler.retire([0, 2]) == [Move(1, 0)]
    assert scheduler.admit() == ([5], [], [])


def test_rows_from_the_end_fill_the_holes():
    scheduler = Scheduler([1] * 6, 6, 100)
    scheduler.admit()
    assert scheduler.retire([0, 2, 5]) == [Move(3, 0), Move(4, 2)]
    assert scheduler.active == 3
    assert scheduler.retire([2]) == []


def test_rows_leave_at_their_limits_and_when_they_are_said_to_have_ended():
    scheduler = Scheduler([5, 2, 3, 4], 4, 100, limits=[1, 3, 3, 9])
    scheduler.drew(scheduler.admit().rows)
    assert (scheduler.rows(slice(1, 3)), scheduler.longest()) == ([1, 2], 6)
    assert scheduler.leave([]) == [Move(3, 0)]
    scheduler.drew(scheduler.rows(slice(0, 3)))
    assert scheduler.leave([2, 0]) == []
    assert scheduler.rows(slice(0, 9)) == [3, 1]
    scheduler.drew([3, 1])
    assert scheduler.leave([2]) == []
    assert scheduler.rows(slice(0, 9)) == [3]


def test_a_prompt_is_not_copied_from_a_row_that_has_gone_too_far():
    scheduler = Scheduler([6] * 4, 2, 100, prompts=[0, 1, 0, 1], limits=[9, 9, 9, 9], spare=2)
    scheduler.drew(scheduler.admit().rows)
    scheduler.leave([1])
    assert scheduler.admit() == ([], [2], [0])
    for _ in range(2):
        scheduler.drew([0, 2])
    scheduler.leave([2])
    assert scheduler.admit() == ([3], [], [])


def test_rounded_rows_are_few_and_never_twice_as_many():
    rounded = [rounded_rows(count) for count in range(1, 513)]
    assert rounded[:9] == [4, 4, 4, 4, 8, 8, 8, 8, 16]
    assert all(count <= it for count, it in enumerate(rounded, 1)) and rounded == sorted(rounded)
    assert all(it < 2 * count for count, it in enumerate(rounded, 1) if count > 4)
    assert len(set(rounded)) <= 32
    assert [rounded_rows(it) for it in rounded] == rounded

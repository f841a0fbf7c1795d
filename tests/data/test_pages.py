from hypothesis import given
from hypothesis import strategies as st

from hpcrl.data.pages import PAGE, Pages, needed_pages, pages, ring_pages
from hpcrl.data.slots import Scheduler


@given(
    lengths=st.lists(st.tuples(st.integers(1, 900), st.integers(1, 900)), min_size=1, max_size=20),
    slots=st.integers(1, 6),
    window=st.sampled_from([0, 40, 256, 257, 600]),
    ends=st.randoms(use_true_random=False),
)
def test_no_block_has_two_owners_rows_keep_theirs_and_all_come_back(lengths, slots, window, ends):
    """Against a dictionary from rows to blocks, while rows enter, move and leave as a scheduler has it."""
    most = [prompt + limit for prompt, limit in lengths]
    room, longest = needed_pages(sorted(most, reverse=True)[:slots], window), max(most)
    scheduler = Scheduler([prompt for prompt, _ in lengths], slots, 10**6)
    table, owned = Pages(slots + 2, room, pages(longest)), {}
    while not scheduler.done:
        first = scheduler.active
        for slot, row in enumerate(scheduler.admit().rows, first):
            table.seat(slot, ring_pages(most[row], window))
            owned[row] = list(table.of(slot))
            assert len(owned[row]) == ring_pages(most[row], window)
        ended = [row for row in scheduler.rows(slice(0, slots)) if ends.random() < 0.4]
        moves = scheduler.leave(ended)
        table.leave(moves, scheduler.active)
        owned = {row: blocks for row, blocks in owned.items() if row not in ended}
        held = [block for blocks in owned.values() for block in blocks]
        assert len(held) == len(set(held)) and 0 not in held and max(held, default=0) < room
        for slot, row in enumerate(scheduler.rows(slice(0, slots))):
            assert table.of(slot) == owned[row]
            each = [owned[row][column % len(owned[row])] for column in range(pages(longest))]
            assert table.table[slot].tolist() == each
        assert not table.table[scheduler.active :].any()
    table.seat(0, room - 1)
    assert sorted(table.of(0)) == list(range(1, room))


@given(length=st.integers(1, 3000), window=st.integers(0, 1500))
def test_a_ring_holds_all_that_a_token_of_a_row_sees(length, window):
    ring = ring_pages(length, window)
    for position in {0, length // 2, length - 1, min(length - 1, window), max(0, length - max(window, 1))}:
        seen = range(max(0, position - window + 1) if window else 0, position + 1)
        held = {column % ring: column for column in range(position // PAGE + 1)}
        assert {token // PAGE for token in seen} <= set(held.values())
    assert ring <= pages(length)

import pytest

from hpcrl.data.score_blocks import blocks, most_scores, texts_at_once


def pairs(length, before, window):
    """Which query sees which key."""
    first = {query: max(0, before + query + 1 - window) if window else 0 for query in range(length)}
    return {(query, key) for query in range(length) for key in range(first[query], before + query + 1)}


@pytest.mark.parametrize(("length", "before"), [(1, 0), (1, 9), (23, 0), (23, 5)])
@pytest.mark.parametrize("window", [0, 1, 6, 30])
@pytest.mark.parametrize("most", [1, 100, 10_000])
def test_each_query_is_in_one_block_with_all_keys_that_it_sees(length, before, window, most):
    found = list(blocks(length, before, window, 4, most))
    assert [row for block in found for row in range(length)[block.queries]] == list(range(length))
    held = {
        (query, key) for it in found for query in range(length)[it.queries] for key in range(before + length)[it.keys]
    }
    assert pairs(length, before, window) <= held
    for block in found:
        assert 4 * block.scores <= most or block.queries.stop - block.queries.start == 1


def test_a_long_text_is_never_held_whole_and_costs_half_of_its_square_or_its_window():
    """Eight heads at 8,192 tokens: all scores at once would be 2 GiB."""
    length, heads, most = 8192, 8, most_scores("cpu")
    assert texts_at_once(length, 0, (heads, 4, 256), most) == 1
    whole, windowed = (list(blocks(length, 0, window, heads, most)) for window in (0, 1024))
    assert max(block.scores for block in whole + windowed) * heads <= most
    assert sum(block.scores for block in whole) < 0.51 * length**2
    assert sum(block.scores for block in windowed) < 1.02 * length * 1024


def test_short_texts_are_taken_together_as_long_as_their_keys_are_few():
    assert texts_at_once(16, 0, (8, 4, 32), 1 << 20) == (1 << 20) // (8 * 16 * 32)
    assert texts_at_once(1, 1000, (8, 4, 256), 1 << 20) == 1
    assert blocks(16, 0, 0, 8 * 256, 1 << 20).__next__().queries == slice(0, 16)

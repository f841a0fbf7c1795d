"""Which samples of a step stay."""

from hypothesis import given
from hypothesis import strategies as st

from hpcrl.data.keeping import kept
from hpcrl.data.order import group_of, row_of, sample_ids

ROWS = [f"row {i}" for i in range(12)]


def test_all_none_or_whole_rows_up_to_so_many() -> None:
    ids = sample_ids(ROWS, 0, 4)
    assert kept(ids, 1, "all") == ids and kept(ids, 1, 0) == ()
    found = kept(ids, 1, 9)
    assert len(found) == 8 and list(found) == [sample for sample in ids if sample in found]
    assert kept(ids, 2, 9) != found
    assert len(kept(ids, 1, 3)) == 4, "one row whole, if its responses are more"
    assert len(kept(sample_ids(ROWS, 0), 1, 9, responses=4)) == 2
    assert kept((), 1, 9) == ()


@given(st.sets(st.sampled_from(ROWS), min_size=4), st.integers(0, 3), st.integers(1, 20), st.integers(1, 3))
def test_a_row_that_is_kept_is_kept_whenever_none_that_precedes_it_is_there(
    rows: set[str], epoch: int, wanted: int, each: int
) -> None:
    """So the same ones come back, in whatever order and company their steps have them."""
    every = [row_of(sample) for sample in kept(sample_ids(ROWS, 0, each), 7, wanted)]
    ids = sample_ids(sorted(rows, reverse=True), epoch, each)
    found = kept(ids, 7, wanted)
    assert {row_of(sample) for sample in found} >= {row for row in every if row in rows}
    assert len(found) <= max(wanted, each) and found
    groups = {group_of(sample) for sample in found}
    assert [sample for sample in ids if group_of(sample) in groups] == list(found)

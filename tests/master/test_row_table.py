"""Where rows are, and how to get them."""

from hypothesis import given
from hypothesis import strategies as st

from hpcrl.master.row_table import Holder, InDataset, InMemory, InSpill, RowTable
from hpcrl.wire.messages import RowSource

HOLDERS: list[Holder] = [
    InMemory(0),
    InMemory(1),
    InSpill("spills/a.h5"),
    InSpill("spills/b.h5", "g"),
    InDataset("train"),
]


def test_rows_of_one_holder_are_one_source_for_all_keys() -> None:
    holdings = RowTable()
    holdings.put(1, ["y", "z"], ["a", "b"], InMemory(1))
    assert holdings.sources(1, ["y", "z"], ["a", "b"]) == (RowSource(("y", "z"), ("a", "b"), rank=1),)


def test_the_latest_holder_counts() -> None:
    holdings = RowTable()
    holdings.put(1, ["y"], ["a", "b"], InMemory(0))
    holdings.put(1, ["y"], ["b"], InSpill("s.h5", "g"))
    assert holdings.sources(1, ["y"], ["b"]) == (RowSource(("y",), ("b",), spill="s.h5", group="g"),)


def test_released_steps_are_forgotten() -> None:
    holdings = RowTable()
    holdings.put(1, ["y"], ["a"], InMemory(0))
    holdings.put(2, ["y"], ["a"], InMemory(1))
    holdings.release(2)
    assert holdings.sources(2, ["y"], ["a"]) == (RowSource(("y",), ("a",), rank=1),)
    assert 1 not in holdings._holders


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 7), st.sampled_from(range(len(HOLDERS))))))
def test_sources_name_every_row_of_every_key_once_where_it_is(puts: list[tuple[str, int, int]]) -> None:
    holdings, oracle = RowTable(), {}
    for key, row, holder in [*[(k, r, 4) for k in "xyz" for r in range(8)], *puts]:
        holdings.put(3, [key], [str(row)], HOLDERS[holder])
        oracle[key, str(row)] = HOLDERS[holder]
    wanted = [str(row) for row in range(8)]
    found: dict[tuple[str, str], Holder] = {}
    for source in holdings.sources(3, ["x", "y", "z"], wanted):
        holder: Holder = InDataset(source.dataset or "")
        if source.rank is not None:
            holder = InMemory(source.rank)
        elif source.spill is not None:
            holder = InSpill(source.spill, source.group)
        for key in source.keys:
            for sample_id in source.ids:
                assert (key, sample_id) not in found
                found[key, sample_id] = holder
    assert found == oracle

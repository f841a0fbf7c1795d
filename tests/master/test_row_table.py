"""Where rows are, and how to get them."""

from hypothesis import given
from hypothesis import strategies as st

from hpcrl.data.samples import KeyMeta, SampleMeta
from hpcrl.master.row_table import Key, RowTable
from hpcrl.wire.holders import FROM_DATA, Holder, InDataset, InMemory, InSpill, RowSource

MAKERS = {"y": "gen", "z": "gen", "r": "reward", "x": FROM_DATA}
HOLDERS: list[Holder] = [InMemory(0), InMemory(1), InSpill("spills/a.h5"), InSpill("spills/b.h5", "g")]


def keys(names: str) -> list[Key]:
    return [Key(MAKERS[name], name) for name in names]


def test_rows_of_one_call_and_one_holder_are_one_source_for_all_keys() -> None:
    rows = RowTable()
    rows.put(1, "gen", ["y", "z"], ["a", "b"], InMemory(1))
    assert rows.sources(1, keys("yz"), ["a", "b"], 0) == (RowSource(1, "gen", ("y", "z"), ("a", "b"), (InMemory(1),)),)


def test_a_row_that_no_call_makes_is_of_the_data_set() -> None:
    rows = RowTable()
    rows.put(1, FROM_DATA, ["x"], ["a"], InDataset("train"))
    assert rows.sources(1, keys("x"), ["a"], 0) == (RowSource(1, FROM_DATA, ("x",), ("a",), (InDataset("train"),)),)


def test_of_several_holders_the_readers_own_memory_is_nearest_and_a_later_one_farther() -> None:
    rows = RowTable()
    for holder in (InMemory(0), InMemory(1), InSpill("s.h5")):
        rows.put(1, "gen", ["y"], ["a"], holder)
    (source,) = rows.sources(1, keys("y"), ["a"], 1)
    assert source.holders == (InMemory(1), InMemory(0), InSpill("s.h5"))
    (source,) = rows.sources(1, keys("y"), ["a"], 2)
    assert source.holders == (InMemory(0), InMemory(1), InSpill("s.h5"))


def test_who_asks_again_is_told_the_same_until_rows_are_put_and_then_where_they_are() -> None:
    rows = RowTable()
    rows.put(1, "gen", ["y"], ["a", "b"], InMemory(0))
    inputs, ids = [(tuple(keys("y")), ("a", "b"))], ("a", "b")
    first = rows.gathered(1, inputs, ids, 0)
    assert rows.gathered(1, inputs, ids, 0) is first == rows.sources(1, keys("y"), ids, 0)
    rows.put(1, "gen", ["y"], ["b"], InSpill("s.h5"))
    assert [source.holders for source in rows.gathered(1, inputs, ids, 0)] == [
        (InMemory(0),),
        (InMemory(0), InSpill("s.h5")),
    ]
    rows.forget(2)
    assert not rows._told


def test_forgotten_steps_are_gone() -> None:
    rows = RowTable()
    rows.put(1, "gen", ["y"], ["a"], InMemory(0))
    rows.put(2, "gen", ["y"], ["a"], InMemory(1))
    rows.forget(2)
    assert rows.sources(2, keys("y"), ["a"], 1) == (RowSource(2, "gen", ("y",), ("a",), (InMemory(1),)),)
    assert (1, "gen") not in rows._made


def test_the_longest_row_of_a_sample_is_that_with_the_most_tokens_of_all_keys_that_calls_have_made() -> None:
    rows = RowTable()
    rows.measured(
        1, "gen", SampleMeta(("b", "a"), {"y": KeyMeta("int64", ((3, 3), (2,))), "z": KeyMeta("int64", ((9,), (9,)))})
    )
    rows.measured(1, "reward", SampleMeta(("a",), {"r": KeyMeta("float32", ((5,),))}))
    rows.measured(1, "reward", SampleMeta(("b",), {"r": KeyMeta("float32", ((0,),))}))
    assert rows.longest(1, keys("xyr"), ["a", "b"]) == [5, 6]
    assert rows.longest(1, keys("x"), ["a", "b"]) == [0, 0]
    assert rows.longest(2, keys("xyr"), []) == [], "of a step that has no samples nothing was ever told"
    rows.forget(2)
    assert not rows._made


def test_keys_whose_rows_were_as_long_may_differ_later() -> None:
    rows = RowTable()
    alike, longer = KeyMeta("int64", ((3,),)), KeyMeta("int64", ((8,),))
    rows.measured(1, "gen", SampleMeta(("a",), {"y": alike, "z": alike}))
    rows.measured(1, "gen", SampleMeta(("b",), {"y": alike, "z": longer}))
    rows.measured(1, "gen", SampleMeta(("c",), {"y": longer, "z": longer}))
    assert rows.longest(1, keys("y"), ["a", "b", "c"]) == [3, 3, 8]
    assert rows.longest(1, keys("z"), ["a", "b", "c"]) == [3, 8, 8]
    assert rows.longest(1, keys("yz"), ["a", "b", "c"]) == [3, 8, 8]


def test_two_calls_may_make_the_same_key() -> None:
    rows = RowTable()
    rows.put(1, "one", ["y"], ["a"], InMemory(0))
    rows.put(1, "two", ["y"], ["a"], InMemory(1))
    one, two = rows.sources(1, [Key("one", "y"), Key("two", "y")], ["a"], 2)
    assert (one.call, one.holders, two.call, two.holders) == ("one", (InMemory(0),), "two", (InMemory(1),))


@given(st.lists(st.tuples(st.sampled_from("yzrx"), st.integers(0, 7), st.sampled_from(range(len(HOLDERS))))))
def test_sources_name_every_row_of_every_key_once_with_all_of_its_holders(puts: list[tuple[str, int, int]]) -> None:
    rows, oracle = RowTable(), {}
    for key, row, holder in [*[(k, r, 2) for k in "yzrx" for r in range(8)], *puts]:
        rows.put(3, MAKERS[key], [key], [str(row)], HOLDERS[holder])
        oracle[key, str(row)] = [*oracle.get((key, str(row)), ()), HOLDERS[holder]]
    found = {}
    for source in rows.sources(3, keys("xyzr"), [str(row) for row in range(8)], 5):
        for key in source.keys:
            assert source.call == MAKERS[key] and source.step == 3
            for sample_id in source.ids:
                assert (key, sample_id) not in found
                found[key, sample_id] = list(source.holders)
    assert found == oracle

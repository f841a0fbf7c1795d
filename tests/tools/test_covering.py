from operator import itemgetter

from support.covering import covering

CASES = [("master", 1), ("master", 2), ("worker", 3), ("worker", 1), ("worker", 2), ("master", 3)]


def test_each_value_of_each_axis_is_there_and_nothing_is_dropped() -> None:
    cases = covering(CASES, itemgetter(0), itemgetter(1))
    fast = [case for case in cases if isinstance(case, tuple) and not hasattr(case, "marks")]
    assert fast == [("master", 1), ("master", 2), ("worker", 3)]
    assert [case if case in fast else case.values for case in cases] == CASES
    assert all(case in fast or [mark.name for mark in case.marks] == ["slow"] for case in cases)


def test_axes_that_go_together_have_each_pair() -> None:
    assert covering(CASES, itemgetter(0, 1)) == CASES


def test_a_case_need_be_no_tuple() -> None:
    cases = covering(range(4), lambda number: number % 2)
    assert cases[:2] == [0, 1] and [case.values for case in cases[2:]] == [(2,), (3,)]

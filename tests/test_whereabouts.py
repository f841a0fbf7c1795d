"""Whom a call waits for, by what its workers say of themselves."""

import pytest

from hpcrl.whereabouts import BEGINNING, Collective, Doing, culprits_of, ranks_of, runs_of, workers

ALL = (0, 1, 2, 3)


def at(ranks: tuple[int, ...], number: int, inside: bool = True, operation: str = "all-to-all") -> Doing:
    return Doing(
        "execute", "running actor_train of step 7", collective=Collective(runs_of(ranks), operation, number, inside)
    )


REWARD = Doing("execute", "running score of step 7")


def test_a_rank_that_never_entered_is_named_with_what_it_does_and_what_waits_for_it() -> None:
    doing = {0: at(ALL, 413), 1: at(ALL, 413), 2: at(ALL, 413), 3: at(ALL, 412, inside=False)}
    found = culprits_of(ALL, doing)
    assert found.ranks == (3,)
    said = "worker-3 never entered all-to-all 413 of workers 0-3: it is running actor_train of step 7"
    assert found.why == said


def test_who_waits_in_another_group_is_not_blamed_but_whom_that_one_waits_for() -> None:
    doing = {0: at((0, 1), 5), 1: at((1, 2), 2), 2: at((2, 3), 9), 3: REWARD}
    assert culprits_of((0, 1), doing).ranks == (3,)


def test_a_rank_that_is_further_waits_for_nobody_behind_it() -> None:
    doing = {0: at((0, 1), 5), 1: at((0, 1), 6, inside=False)}
    assert culprits_of((0, 1), doing).ranks == (1,), "it has left the operation that the other is in: the other's end"


def test_ranks_that_all_wait_are_told_so() -> None:
    doing = {0: at((0, 1), 5), 1: at((0, 1), 5)}
    found = culprits_of((0, 1), doing)
    assert found.ranks == () and "worker-0 is in all-to-all 5 of workers 0, 1" in found.why
    assert culprits_of((0, 1), {}).why == "nobody says what it does"


def test_messages_are_numbered_apart_so_that_numbers_say_nothing() -> None:
    doing = {0: at((0, 1), 5, operation=BEGINNING), 1: at((0, 1), 9, inside=False)}
    assert culprits_of((0, 1), doing).ranks == (1,)


def test_one_alone_is_its_own() -> None:
    found = culprits_of((2,), {2: REWARD})
    assert found.ranks == (2,) and found.why == "worker-2 is running score of step 7"


@pytest.mark.parametrize(
    ("ranks", "said"),
    [((3,), "worker-3"), ((1, 0), "workers 0, 1"), ((0, 1, 2), "workers 0-2"), ((0, 2, 5), "workers 0, 2, 5")],
)
def test_workers_in_words(ranks: tuple[int, ...], said: str) -> None:
    assert workers(ranks) == said


def test_what_a_process_does_in_words() -> None:
    assert str(at((0, 1), 3)) == "running actor_train of step 7, in all-to-all 3 of workers 0, 1"
    assert str(at((0, 1), 3, inside=False)) == "running actor_train of step 7"


@pytest.mark.parametrize("ranks", [(), (3,), (0, 1, 2, 3), (1, 9, 17), (0, 1, 8, 9, 16, 17), (5, 3, 4), (2, 2)])
def test_a_group_is_told_in_runs_and_is_the_same_again(ranks: tuple[int, ...]) -> None:
    assert ranks_of(runs_of(ranks)) == ranks


def test_of_the_groups_of_a_layout_a_large_one_takes_no_more_words_than_a_small_one() -> None:
    for apart in (1, 8):
        assert len(runs_of(tuple(range(3, 3 + apart * 1024, apart)))) == len(runs_of((3, 3 + apart))) == 1

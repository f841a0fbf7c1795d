"""Which groups a step trains on, by their scores alone."""

import random
from collections.abc import Sequence
from itertools import chain
from math import inf, nan

import pytest

from hpcrl.data.choice import Choice, FirstToEnd
from hpcrl.data.choosing import (
    MOST_EMPTY_STEPS,
    Choose,
    Extend,
    Shortage,
    choose,
    differs,
    first_to_end,
    histogram,
    more_in_flight,
)
from hpcrl.data.cutting import ByRows
from hpcrl.data.order import SampleOrder, group_of

RULE = Choice(key="rewards", max_rounds=3, on_shortage="fail", setting="grpo.filter_groups.metric")
SMALLER = Choice(key="rewards", max_rounds=3, on_shortage="smaller", setting="grpo.filter_groups.metric")


def ids(*groups: str, samples: int = 2) -> tuple[str, ...]:
    return tuple(f"{group}#{k}" for group in groups for k in range(samples))


def scored(by_group: dict[str, Sequence[float]]) -> dict[str, float]:
    return {f"{group}#{k}": score for group, scores in by_group.items() for k, score in enumerate(scores)}


def test_the_first_groups_in_data_order_are_chosen_whoever_was_scored_first() -> None:
    by_group = {"a@0": (0, 1), "b@0": (1, 1), "c@0": (1, 0), "d@0": (0, 1)}
    rounds = [ids("a@0", "b@0"), ids("c@0", "d@0")]
    expected = Choose(ids("a@0", "c@0"), ("b@0", "d@0"))
    scores = list(scored(by_group).items())
    for seed in range(5):
        random.Random(seed).shuffle(scores)
        assert choose(RULE, 2, rounds, dict(scores)) == expected


@pytest.mark.parametrize(
    ("scores", "kept"),
    [
        ((0, 0, 0), False),
        ((0, 1, 0), True),
        ((nan, nan, nan), False),
        ((nan, 1, nan), False),
        ((nan, 1, 1), False),
        ((nan, 1, 0), True),
        ((0.1, 0.1 + 1e-18, 0.1), False),
        ((-0.0, 0.0), False),
        ((inf, -inf), True),
    ],
)
def test_a_group_is_kept_where_two_of_its_scores_differ(scores: Sequence[float], kept: bool) -> None:
    assert differs(scores) == kept


@pytest.mark.parametrize(
    ("drawn", "kept", "wanted", "rows"),
    [(8, 4, 8, 8), (8, 6, 8, 3), (8, 7, 8, 2), (8, 1, 8, 8), (8, 0, 8, 8), (100, 99, 100, 2), (3, 3, 8, 5)],
)
def test_as_many_rows_are_drawn_more_as_it_takes_at_the_rate_at_which_groups_were_kept(
    drawn: int, kept: int, wanted: int, rows: int
) -> None:
    scores = scored({f"g{i}@0": (0, int(i < kept)) for i in range(drawn)})
    assert choose(RULE, wanted, [tuple(scores)], scores) == Extend(rows)


def test_after_the_last_round_a_shortage_is_told_or_the_step_is_smaller() -> None:
    by_group = {"a@0": (0, 1), "b@0": (1, 1), "c@0": (nan, 0)}
    rounds, scores = [ids(group) for group in by_group], scored(by_group)
    found = choose(RULE, 2, rounds, scores)
    assert isinstance(found, Shortage)
    assert found.describe(RULE) == (
        "after grpo.filter_groups.max_rounds = 3, 1 of 3 groups have samples of different scores, and a step trains "
        "on 2. Scores: 0 ×2, 1 ×3, missing ×1"
    )
    assert choose(SMALLER, 2, rounds, scores) == Choose(ids("a@0"), ("b@0", "c@0"))


def test_a_step_that_may_be_smaller_may_train_on_nothing_but_the_tenth_in_a_row_is_told() -> None:
    rounds = [ids("a@0"), ids("b@0"), ids("c@0")]
    scores = dict.fromkeys(chain(*rounds), 0.5)
    assert choose(SMALLER, 2, rounds, scores, MOST_EMPTY_STEPS - 2) == Choose((), ("a@0", "b@0", "c@0"))
    found = choose(SMALLER, 2, rounds, scores, MOST_EMPTY_STEPS - 1)
    assert isinstance(found, Shortage)
    assert found.describe(SMALLER) == (
        "after grpo.filter_groups.max_rounds = 3, 0 of 3 groups have samples of different scores, and a step trains "
        "on 2. In the 9 steps before it was none either, so that they trained on nothing. Scores: 0.5 ×6"
    )
    scores["a@0#1"] = 0.6
    assert choose(SMALLER, 2, rounds, scores, MOST_EMPTY_STEPS - 1) == Choose(ids("a@0"), ("b@0", "c@0"))


def test_many_scores_are_shown_in_ranges() -> None:
    assert histogram([1.0, 0.0, 1.0]) == "0 ×1, 1 ×2"
    assert histogram([-0.0] * 16) == "0 ×16"
    shown = histogram([i / 100 for i in range(101)])
    assert shown.startswith("0 to 0.1 ×10, 0.1 to 0.2 ×10") and shown.endswith("0.9 to 1 ×11")
    assert histogram([*map(float, range(11)), inf]) == "0 to inf ×12"


def test_rounds_are_decided_alike_however_the_rows_came_into_them() -> None:
    """The choice depends on the sequence of groups alone."""
    order = SampleOrder([f"r{i}" for i in range(7)], ByRows(4), seed=1, samples_per_prompt=3)
    for seed in range(200):
        rng, cursor, rounds, scores = random.Random(seed), 0, [], {}
        rows = 4
        while True:
            drawn = order.draw(cursor, rows)
            cursor, rounds = drawn.next_cursor, [*rounds, drawn.ids]
            scores |= {sample: float(rng.random() < 0.3) for sample in drawn.ids}
            decided = choose(RULE, 4, rounds, scores)
            if not isinstance(decided, Extend):
                break
            assert 1 <= decided.rows <= 4
            rows = decided.rows
        groups = list(dict.fromkeys(map(group_of, chain(*rounds))))
        if isinstance(decided, Choose):
            chosen = list(dict.fromkeys(map(group_of, decided.ids)))
            assert len(chosen) == 4 and sorted([*chosen, *decided.dropped]) == sorted(groups)
            assert chosen == [group for group in groups if group in chosen]
            last = groups.index(chosen[-1])
            kept = [group for group in groups[: last + 1] if differs([scores[f"{group}#{k}"] for k in range(3)])]
            assert kept == chosen
        else:
            assert len(rounds) == 3 and decided.kept < 4


FLIGHT = FirstToEnd(key="whole", in_flight=4, max_age=None, setting="generation.in_flight")


def ended(*groups: str, of: Sequence[str]) -> dict[str, float]:
    """Whether each sample has; of a group in lower case one of two has."""
    return {sample: float(sample[0] in groups or sample.endswith("#0")) for sample in of}


def test_until_enough_groups_have_ended_the_others_go_on_and_as_many_are_begun() -> None:
    drawn = ids("a@0", "b@0", "c@0", "d@0")
    assert first_to_end(FLIGHT, 2, drawn, [drawn], ended("b", of=drawn)) == Extend(1, ("a@0#1", "c@0#1", "d@0#1"))
    assert first_to_end(FLIGHT, 2, drawn, [drawn], ended(of=drawn)) == Extend(0, tuple(x for x in drawn if "#1" in x))


def test_groups_end_in_the_order_of_rounds_and_then_of_the_data() -> None:
    drawn = ids("a@0", "b@0", "c@0", "d@0", "e@0")
    # d ends in round 0, b and e in 1, a in 2
    rounds = [drawn[:8], ("a@0#1", "b@0#0", "c@0#1", *drawn[8:]), ("a@0#1",)]
    decided = first_to_end(FLIGHT, 2, drawn, rounds, ended("a", "b", "d", "e", of=drawn))
    assert decided == Choose(ids("b@0", "d@0"), carried=ids("e@0", "a@0", "c@0"), whole=2)


def test_none_is_begun_where_enough_are_carried_that_have_ended() -> None:
    assert [more_in_flight(FLIGHT, 3, whole, 2) for whole in (0, 2, 3, 5)] == [2, 2, 0, 0]
    assert more_in_flight(FLIGHT, 3, 0, 6) == 0


@pytest.mark.parametrize("seed", range(20))
def test_what_is_in_flight_stays_bounded_and_every_group_is_trained_on_or_carried(seed: int) -> None:
    chance = random.Random(seed)
    wanted, rule = (
        chance.randint(1, 6),
        FirstToEnd(key="whole", in_flight=chance.randint(6, 9), max_age=None, setting=""),
    )
    left, carried, whole, count, trained = dict[str, int](), (), 0, 0, list[str]()
    for _ in range(30):
        have, rounds = list[str](carried), list[tuple[str, ...]]()
        new, going = more_in_flight(rule, wanted, whole, len(set(map(group_of, carried))) - whole), tuple(carried)
        while True:
            begun = ids(*(f"{count + i}@0" for i in range(new)))
            count += new
            left |= {sample: chance.randint(1, 4) for sample in begun}
            have, rounds = [*have, *begun], [*rounds, (*going, *begun)]
            for sample in rounds[-1]:
                left[sample] = max(0, left[sample] - 1)
            decided = first_to_end(rule, wanted, tuple(have), rounds, {s: float(not left[s]) for s in have})
            if isinstance(decided, Choose):
                break
            new, going = decided.rows, decided.going
            assert len(set(map(group_of, (*going,)))) + new == max(rule.in_flight, len(set(map(group_of, going))))
        trained += decided.ids
        carried, whole = decided.carried, decided.whole
        assert sorted((*decided.ids, *carried)) == sorted(have) and len(decided.ids) == 2 * wanted
        assert len(carried) <= 2 * (rule.in_flight + wanted + rule.in_flight)
    assert len(trained) == len(set(trained)) == 30 * 2 * wanted

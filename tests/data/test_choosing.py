"""Which groups a step trains on, by their scores alone."""

import random
from collections.abc import Sequence
from itertools import chain
from math import inf, nan

import pytest

from hpcrl.data.choice import Choice
from hpcrl.data.choosing import MOST_EMPTY_STEPS, Choose, Extend, Shortage, choose, differs, histogram
from hpcrl.data.cutting import ByRows
from hpcrl.data.order import SampleOrder, group_of

RULE = Choice(key="rewards", max_rounds=3, on_shortage="fail", setting="grpo.filter_groups")
SMALLER = Choice(key="rewards", max_rounds=3, on_shortage="smaller", setting="grpo.filter_groups")


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

"""A bound at a field, msgspec's or in words, and what is said of a value that breaks it."""

import math
from dataclasses import dataclass
from typing import Annotated

import msgspec
import pytest
from msgspec import Meta

from hpcrl.config.bounds import Count, NodeCount, NonNegative, Positive, Share, broken_bound
from hpcrl.config.experiment import to_dict
from hpcrl.config.fields import build, settings
from hpcrl.recipes.algorithm import experiment_from
from hpcrl.recipes.toy import ToyExperiment

NAMED = Annotated[float, Meta(gt=0, le=1, description="a share that is not 0")]


@pytest.mark.parametrize(
    ("hint", "value", "expectation"),
    [
        (Count, 0, "at least 1"),
        (Count | None, 0, "at least 1"),
        (Positive, 0.0, "a finite number above 0"),
        (NonNegative, -0.5, "at least 0"),
        (Share, 1.5, "between 0 and 1"),
        (NAMED, 0.0, "a share that is not 0"),
        (Count, 2**31, "at least 1 and below 2^31"),
        (int, -(10**30), "below 2^31"),
        (NodeCount, 65_537, "at most 65,536"),
        (NodeCount, "1-1025", "a range of at most 1,024 numbers"),
        (NodeCount, "1-" + "9" * 5000, "a whole number from 1, or a range such as 2-8, the least first"),
        (Annotated[int, Meta(ge=1, lt=4)], 4, "at least 1 and below 4"),
        (Annotated[Count, Meta(le=8)], 9, "at least 1 and at most 8"),
        (Annotated[str, Meta(min_length=2)], "a", "`str` of length >= 2"),
        *((Positive, value, "a finite number above 0") for value in (math.inf, math.nan)),
        *((Positive | None, value, "a finite number above 0") for value in (math.inf, math.nan)),
        *((NonNegative, value, "at least 0") for value in (math.inf, math.nan)),
        *((float, value, "a finite number") for value in (math.inf, -math.inf, math.nan)),
    ],
)  # fmt: skip
def test_a_value_beyond_its_bound_is_told_what_is_expected(hint, value, expectation):
    assert broken_bound(hint, value) == expectation


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Count, 1),
        (Count, 2**31 - 1),
        (NodeCount, "2-1025"),
        (Annotated[int, Meta(le=2**62)], 2**62),
        (Count | None, None),
        (NonNegative, 0.0),
        (Share, 1.0),
        (NAMED, 1.0),
        (float, -1e300),
        (str, ""),
    ],
)
def test_a_value_within_its_bound_is_let_through(hint, value):
    assert broken_bound(hint, value) is None


def test_a_configuration_is_made_whatever_its_bounds_and_read_within_them():
    values = to_dict(ToyExperiment()) | {"seed": -1}
    wrong = build(ToyExperiment, values)
    assert [s.key for s in settings(ToyExperiment) if s.broken_bound(s.of(wrong))] == ["seed"]
    with pytest.raises(msgspec.ValidationError, match=r"\$\.seed"):
        experiment_from(values)


def test_a_field_without_a_class_of_change_has_none():
    @dataclass(frozen=True, kw_only=True)
    class Section:
        rows: Count = 1
        """How many."""

    assert [setting.change for setting in settings(Section)] == [None]

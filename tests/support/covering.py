"""Which of many cases run each time: enough to have each value of each axis once. The others are slow."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import pytest


def covering(cases: Iterable[Any], *axes: Callable[[Any], Hashable]) -> list[Any]:
    """The cases for `parametrize`. Of those that add as many values, the first is taken; where axes go together, one
    gives the pair."""
    every = list(cases)
    values = [{(number, axis(case)) for number, axis in enumerate(axes)} for case in every]
    missing, kept = set().union(*values), set()
    while missing:
        best = max(range(len(every)), key=lambda index: len(values[index] & missing))
        kept.add(best)
        missing -= values[best]
    return [case if index in kept else _slow(case) for index, case in enumerate(every)]


def _slow(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)

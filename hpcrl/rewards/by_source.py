"""The reward of mixed data: each row is scored by what fits its `data_source`, by verl's names or the user's."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from hpcrl.errors import DataError
from hpcrl.rewards import exact, gsm8k, math

FUNCTIONS: Mapping[str, Callable[..., float]] = MappingProxyType(
    {"exact": exact.score, "gsm8k": gsm8k.score, "math": math.score}
)

SOURCES: Mapping[str, str] = MappingProxyType(
    {
        "openai/gsm8k": "gsm8k",
        "lighteval/MATH": "math",
        "DigitalLearningGmbH/MATH-lighteval": "math",
        "HuggingFaceH4/MATH-500": "math",
    }
)
"""What verl 0.9.1's `reward_score` scores as hpcrl does."""


def score(response: str, row: Mapping[str, Any], *, sources: Mapping[str, str] = MappingProxyType({})) -> float:
    """The score by the function of the row's source. Raises DataError where there is none."""
    known = {**SOURCES, **sources}
    source = row.get("data_source")
    if source not in known:
        raise DataError(
            f"row {row.get('id')!r} has the data_source {source!r}; by_source knows {', '.join(known)}.",
            "Name its function in the kwargs of by_source, as sources: {NAME: exact}; a component's change in a "
            "fork of the run.",
        )
    return FUNCTIONS[known[source]](response, row)

"""The reward of mixed data: each row is scored by what fits its `data_source`, by verl's names or the user's."""

import re
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

OTHERS: Mapping[str, str] = MappingProxyType(
    {
        r"math|math_dapo|math_dapo_reasoning|aime.*": "math_dapo (1 and -1, by `Answer:` and Minerva's rules)",
        r"numina_(aops_forum|synthetic_math|amc_aime|synthetic_amc|cn_k12|olympiads)": "prime_math (by sympy)",
        r"codecontests|apps|codeforces|taco": "prime_code or a sandbox (by running the code)",
        r"hiyouga/geometry3k": "geo3k (by mathruler)",
        r"searchR1_(nq|triviaqa|popqa|hotpotqa|2wikimultihopqa|musique|bamboogle)": "search_r1_like_qa_em",
    }
)
"""What it scores by functions of its own that hpcrl does not have: name → function."""


def score(response: str, row: Mapping[str, Any], *, sources: Mapping[str, str] = MappingProxyType({})) -> float:
    """The score by the function of the row's source. Raises DataError where there is none."""
    known = {**SOURCES, **sources}
    source = row.get("data_source")
    if source not in known:
        other = next((name for names, name in OTHERS.items() if re.fullmatch(names, str(source))), None)
        by_verl = "" if other is None else f", which verl scores by its {other}"
        raise DataError(
            f"row {row.get('id')!r} has the data_source {source!r}{by_verl}; by_source knows {', '.join(known)}.",
            "Name its function in the kwargs of by_source, as sources: {NAME: exact}; a component's change in a "
            "fork of the run.",
        )
    return FUNCTIONS[known[source]](response, row)

"""Advantages and the adaptive KL coefficient, for a script that computes them itself.

The formulas are those of the roles, which are found by their place, as hosts are: only who calls these loads torch.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcrl.config.generation import GenerationConfig
from hpcrl.config.kl import KLConfig
from hpcrl.controller.user_code import misuse
from hpcrl.plugins import load
from hpcrl.recipes.policy import ADAPTIVE_ERROR_LIMIT, PolicyConfig

Rows = Mapping[str, Sequence[np.ndarray]]


def advantages(
    rows: Rows, section: PolicyConfig, kl_coef: float, generation: GenerationConfig | None = None
) -> dict[str, Any]:
    """Advantages and returns of each token, float64, as the roles of an algorithm with a critic have them in a step
    whose KL has this weight. `section` is the algorithm's own, whose recipe has them as a computation.

    Where its `overlong_buffer` is set, the penalty takes `e.generation` besides.

    Raises:
        UserCodeError: the algorithm has none for scripts, or `e.generation` is missing.
    """
    place = getattr(section, "in_script", "")
    if not place:
        raise misuse(f"advantages: {type(section).__name__} has none that a script computes: its actor does.")
    if section.overlong_buffer is not None and generation is None:
        raise misuse(
            f"advantages: overlong_buffer = {section.overlong_buffer} counts from generation.max_new_tokens.",
            "Give it e.generation as a further argument.",
        )
    computed: dict[str, Any] = load(place)(rows, section, kl_coef, generation or GenerationConfig())
    return computed


def adapt_kl(kl: KLConfig, coef: float, mean: float, samples: float) -> float:
    """The weight of the KL in the next step, after one of which so many samples count, with this KL per token in the
    mean. It stays where none counts, or where either is NaN. Samples are rounded: they may be a share times a number.
    """
    if not kl.adaptive or not kl.used:
        return coef if kl.adaptive else kl.coef
    if math.isnan(mean) or math.isnan(samples) or not round(samples):
        return coef
    adapted: float = load("hpcrl.algos.functional.kl:adapted_kl_coef")(
        coef, mean, kl.target, kl.horizon, round(samples), ADAPTIVE_ERROR_LIMIT
    )
    return adapted

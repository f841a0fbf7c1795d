"""Models beside each other on the same prompts: means, how sure they are, and how they differ prompt by prompt.

Responses to one prompt are not independent: they count as their mean, once. Intervals are of the normal approximation
over prompts (mean ± 1.96 standard errors).
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

import msgspec

DEVIATIONS = 1.96
"""Of 95 % of a normal distribution."""
Scores = Mapping[str, Mapping[str, Sequence[float]]]
"""Figure → prompt → of each response."""


class Estimate(msgspec.Struct, frozen=True):
    """A mean over so many prompts, and its interval; None where there are too few."""

    mean: float
    low: float | None
    high: float | None
    prompts: int


class Evaluated(msgspec.Struct, frozen=True):
    """A model. `metrics` are those of its run, as an evaluation while training has them."""

    model: str
    run_dir: str
    figures: dict[str, Estimate]
    metrics: dict[str, float]


class Difference(msgspec.Struct, frozen=True):
    """Of a model to the first one in a figure, over the prompts that both have answered."""

    model: str
    against: str
    figure: str
    difference: Estimate


class NotCompared(msgspec.Struct, frozen=True):
    """A model that was asked or judged otherwise than the first one, and the settings that differ."""

    model: str
    against: str
    settings: tuple[str, ...]


class Evaluation(msgspec.Struct, frozen=True):
    """The JSON of `hpcrl eval --json`."""

    models: tuple[Evaluated, ...]
    differences: tuple[Difference, ...]
    not_compared: tuple[NotCompared, ...] = ()
    intervals: str = "95 %, normal approximation over prompts"


def estimate(of_prompts: Sequence[float]) -> Estimate:
    """Of a figure's means over the responses to each prompt."""
    mean, count = fmean(of_prompts), len(of_prompts)
    if count < 2:
        return Estimate(mean, None, None, count)
    half = DEVIATIONS * stdev(of_prompts) / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half, count)


def evaluation(
    names: Sequence[str],
    run_dirs: Sequence[str],
    scores: Sequence[Scores],
    metrics: Sequence[Mapping[str, float]],
    differing: Sequence[Sequence[str]],
) -> Evaluation:
    """Of models in the order of the command line; the others are compared with the first, unless they were asked or
    judged otherwise: `differing` has, of each model, the settings that say so."""
    means = [
        {figure: {prompt: fmean(values) for prompt, values in found.items()} for figure, found in each.items()}
        for each in scores
    ]
    models = [
        Evaluated(name, run_dir, {figure: estimate([*found.values()]) for figure, found in of_model.items()}, dict(row))
        for name, run_dir, of_model, row in zip(names, run_dirs, means, metrics, strict=True)
    ]
    differences: list[Difference] = []
    apart = [NotCompared(name, names[0], tuple(by)) for name, by in zip(names, differing, strict=True) if by]
    for name, of_model, by in zip(names[1:], means[1:], differing[1:], strict=True):
        for figure in (figure for figure in means[0] if figure in of_model and not by):
            ours, theirs = of_model[figure], means[0][figure]
            if both := [ours[prompt] - theirs[prompt] for prompt in theirs if prompt in ours]:
                differences.append(Difference(name, names[0], figure, estimate(both)))
    return Evaluation(tuple(models), tuple(differences), tuple(apart))

"""What a script cannot be given: settings by which a graph's steps choose their rows, or lag behind."""

from collections.abc import Iterator

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.errors import Problem
from hpcrl.recipes.algorithm import algorithm_of


def script_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    """Of an algorithm with a script, which decides by itself what a step does."""
    algorithm = algorithm_of(experiment)
    if algorithm.script is None:
        return
    if (choice := algorithm.choice(experiment)) is not None:
        yield Problem(
            (f"{choice.setting}.metric",),
            f"{choice.setting}.metric must be null for {experiment.algorithm}: its script chooses the rows.",
            f"Set {choice.setting}.metric to null, and filter in the script: batch.filter(…).",
        )
    if lagging := [call for call in algorithm.calls(experiment) if call.lag]:
        yield Problem(
            ("lag",),
            f"lag = {lagging[0].lag} must be 0 for {experiment.algorithm}: a script reads what the last change made.",
            "Leave lag out, or take the algorithm without a script.",
        )

"""Runs of the toy whose rows are in flight: which end a step, and which go on in the next."""

from dataclasses import replace

from support.chaos import toy_experiment

from hpcrl.recipes.toy import ToyExperiment


def flying_experiment(steps: int = 6, in_flight: int = 9, max_age: int | None = None) -> ToyExperiment:
    """Batches of 6 rows, of two samples each, of 20, of which 9 are in flight. Step 3 evaluates."""
    experiment = toy_experiment(steps)
    toy = replace(experiment.toy, samples_per_row=2, batch_size=6, in_flight=in_flight, max_age=max_age)
    return replace(experiment, toy=toy)

"""What is wrong with the settings of the toy."""

from dataclasses import replace

from hpcrl.recipes.toy import ALGORITHM, ToyExperiment


def test_a_toy_batch_is_not_larger_than_the_data_set():
    experiment = ToyExperiment()
    assert list(ALGORITHM.check(experiment)) == []
    (problem,) = ALGORITHM.check(replace(experiment, toy=replace(experiment.toy, rows=4)))
    assert problem.text.startswith("toy.batch_size = 8 must be at most toy.rows = 4")

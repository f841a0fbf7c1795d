"""The data sets of an experiment, by what its algorithm declares."""

from collections.abc import Mapping
from typing import Any

from hpcrl.data import datasets, inputs
from hpcrl.data.contents import Contents
from hpcrl.data.datasets import RowOrder
from hpcrl.data.indexes import ScratchIndexes
from hpcrl.data.rows.kind import Dataset
from hpcrl.recipes.algorithm import algorithm_of


def open_datasets(experiment: Any) -> Mapping[str, Dataset]:
    return datasets.open_datasets(experiment, algorithm_of(experiment).rows, ScratchIndexes())


def open_order(experiment: Any, dataset: Dataset) -> RowOrder:
    algorithm = algorithm_of(experiment)
    return datasets.open_order(experiment, algorithm.rows, algorithm.batch(experiment), dataset)


def training_steps(experiment: Any) -> int:
    algorithm = algorithm_of(experiment)
    opened = open_datasets(experiment)
    return datasets.training_steps(experiment, algorithm.rows, algorithm.batch(experiment), opened)


def fingerprints(experiment: Any) -> dict[str, str]:
    return inputs.fingerprints(inputs.input_files(experiment, algorithm_of(experiment).rows), Contents())

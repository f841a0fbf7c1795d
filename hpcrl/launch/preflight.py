"""What can be known of a run before it starts, beyond its configuration: its weights, rows, tokenizer and reward.

Reads headers of weights and the first rows, and calls the reward function on a few of them, in a process of its own.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import sections_of
from hpcrl.config.model import models_of
from hpcrl.config.reward import RewardConfig
from hpcrl.data.datasets import open_datasets, open_texts
from hpcrl.data.order import sample_ids
from hpcrl.data.rows.kind import Dataset
from hpcrl.errors import DataError, UserCodeError
from hpcrl.families.reader import read_config
from hpcrl.families.stored import check_tensors
from hpcrl.recipes.algorithm import Algorithm, algorithm_of
from hpcrl.rewards.run import RewardFunction


def check_inputs(experiment: ExperimentConfig) -> None:
    """Raise what the run would end with as soon as it read its inputs. The experiment is valid.

    Raises:
        DataError: weights that do not fit their config.json, rows that no model can be given, a tokenizer without end.
        UserCodeError: the reward function fails on rows of the training data.
    """
    algorithm = algorithm_of(experiment)
    _check_weights(experiment, algorithm)
    datasets = open_datasets(experiment, algorithm.rows)
    first = {name: dataset.look() for name, dataset in datasets.items()}
    called = {call.role for call in algorithm.calls(experiment)}
    for role, reward in sections_of(experiment, RewardConfig).items():
        if role in called and reward.trial_rows:
            _try_reward(experiment, algorithm, datasets, role, first["train"][: reward.trial_rows])


def _check_weights(experiment: ExperimentConfig, algorithm: Algorithm[Any]) -> None:
    """Raise DataError with what is wrong in each folder, once."""
    problems: dict[str, str] = {}
    for role, model in models_of(experiment).items():
        folder, head = Path(model.path), algorithm.roles[role].head
        try:
            check_tensors(folder, read_config(folder, model.family, f"{role}.family"), head)
        except DataError as error:
            problems.setdefault(str(error), f"{role}.path")
    if problems:
        raise DataError("\n".join(f"{key}: {text}" for text, key in problems.items()))


def _try_reward(
    experiment: ExperimentConfig,
    algorithm: Algorithm[Any],
    datasets: Mapping[str, Dataset],
    role: str,
    rows: tuple[str, ...],
) -> None:
    """Score the rows' own answers; where there are none, and once where there are, an empty response."""
    texts, samples = open_texts(experiment, datasets), sample_ids(rows, 0)
    tokens = datasets["train"].rows(samples).rows(next(iter(algorithm.rows.keys)))
    records = [datasets["train"].text(sample) for sample in samples]
    answers = [str(record.get("answer") or "") for record in records]
    responses = [*answers[:-1], ""]
    try:
        function = RewardFunction(getattr(experiment, role))
        try:
            function.score([texts.decode(row) for row in tokens], responses, records)
        finally:
            function.close()
    except UserCodeError as error:
        raise UserCodeError(
            f"{error}\nIt was tried on the first rows of the training data, before the start.",
            f"Fix it; where it needs what only the nodes have, set {role}.trial_rows to 0.",
        ) from None

"""Evaluation of a reward model: how often it scores the chosen answer of a pair higher. Nothing is trained."""

from collections.abc import Iterator
from dataclasses import dataclass

from hpcrl.config.data import DataConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import NameText
from hpcrl.config.model import ModelConfig
from hpcrl.config.samples import SamplesConfig
from hpcrl.data.batch import Batch
from hpcrl.data.form import NUMBERS
from hpcrl.data.rows.pairs import PAIRS
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import Problem
from hpcrl.recipes.algorithm import Algorithm, RoleKind
from hpcrl.recipes.texts import SCORED, SCORED_PAIR, one_sample_problems, read_in_order


@dataclass(frozen=True, kw_only=True)
class EvaluatePairsExperiment(ExperimentConfig):
    """A reward model on the pairs of data.train: its scores are left in samples/, and the share that is in order."""

    algorithm: NameText = "evaluate_pairs"
    """What to run."""
    data: DataConfig
    """What is read and how it becomes batches."""
    reward_model: ModelConfig
    """The model that is evaluated, as algorithm `reward_model` exports it."""
    samples: SamplesConfig = SamplesConfig(per_step="all")
    """What is kept of what the model said."""


CALLS = (MFC("eval_pairs", "reward_model", "evaluate", SCORED_PAIR, ("chosen_scores", "rejected_scores")),)


def batch(experiment: EvaluatePairsExperiment) -> Batch:
    return read_in_order(experiment.data)


def check(experiment: EvaluatePairsExperiment) -> Iterator[Problem]:
    yield from one_sample_problems(experiment, "a row's pairs are one sample")


ALGORITHM = Algorithm(
    experiment=EvaluatePairsExperiment,
    recipe=lambda experiment: CALLS,
    roles={"reward_model": RoleKind("hpcrl.algos.evaluate_pairs:reward_model", "reward")},
    rows=PAIRS,
    made={"chosen_scores": NUMBERS, "rejected_scores": NUMBERS},
    batch=batch,
    check=check,
    metrics={"eval_pairs": ("loss", *SCORED)},
)

"""A reward model: learns from pairs of answers to score texts (Bradley and Terry 1952; Ouyang et al. 2022, step 2)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from hpcrl.config.bounds import NonNegative
from hpcrl.config.data import DataConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import ChangeClass, NameText
from hpcrl.config.model import OptimizerConfig, TrainedModelConfig
from hpcrl.data.batch import Batch
from hpcrl.data.form import NUMBERS
from hpcrl.data.rows.pairs import PAIRS
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import Problem
from hpcrl.recipes.algorithm import Algorithm, RoleKind, on_eval
from hpcrl.recipes.texts import SCORED, SCORED_PAIR, TRAINED, learnt, one_sample_problems, warm_up_notices


@dataclass(frozen=True, kw_only=True)
class RewardModelConfig(TrainedModelConfig):
    """A model with a head that scores a text after its last token; a head that its folder does not have is new."""

    optimizer: OptimizerConfig = OptimizerConfig(lr=1e-4, weight_decay=0.0, schedule="linear")
    """How its parameters are updated."""
    centring: Annotated[NonNegative, ChangeClass.NUMBERS] = 0.0
    """Weight of the squared sum of a pair's scores, which holds their mean near 0 (Eisenstein et al. 2023); they advise
    0.01."""


@dataclass(frozen=True, kw_only=True)
class RewardModelExperiment(ExperimentConfig):
    """A reward model: learns to score the chosen answer of a pair above the rejected one."""

    algorithm: NameText = "reward_model"
    """What to run."""
    data: DataConfig
    """What is read and how it becomes batches."""
    reward_model: RewardModelConfig
    """The model that is trained, and how."""


CALLS = (
    MFC("rm_train", "reward_model", "train_step", SCORED_PAIR),
    on_eval(MFC("eval_pairs", "reward_model", "evaluate", SCORED_PAIR, ("chosen_scores", "rejected_scores"))),
)


def batch(experiment: RewardModelExperiment) -> Batch:
    return learnt(experiment.data)


def check(experiment: RewardModelExperiment) -> Iterator[Problem]:
    yield from one_sample_problems(experiment, "a row's pairs are one sample")


ALGORITHM = Algorithm(
    experiment=RewardModelExperiment,
    recipe=lambda experiment: CALLS,
    roles={"reward_model": RoleKind("hpcrl.algos.reward_model:reward_model", "reward")},
    rows=PAIRS,
    made={"chosen_scores": NUMBERS, "rejected_scores": NUMBERS},
    batch=batch,
    check=check,
    notices=lambda experiment: warm_up_notices(experiment, batch(experiment).updates),
    metrics={"rm_train": (*TRAINED, *SCORED), "eval_pairs": ("loss", *SCORED)},
)

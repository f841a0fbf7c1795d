"""Supervised fine-tuning: the actor learns given answers (Ouyang et al. 2022, arXiv:2203.02155, step 1)."""

from collections.abc import Iterator
from dataclasses import dataclass

from hpcrl.config.classifier import ClassifierConfig
from hpcrl.config.data import DataConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import NameText
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.judge import JudgeConfig
from hpcrl.config.model import OptimizerConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.data.batch import Batch
from hpcrl.data.form import NUMBERS
from hpcrl.data.rows.answers import ANSWERS
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import Problem
from hpcrl.recipes.algorithm import Algorithm, RoleKind, on_eval
from hpcrl.recipes.environment import GENERATED
from hpcrl.recipes.texts import (
    JUDGED,
    MADE,
    SCORERS,
    TRAINED,
    evaluation,
    learnt,
    warm_up_notices,
)


@dataclass(frozen=True, kw_only=True)
class SFTModelConfig(TrainedModelConfig):
    """A model that learns given answers."""

    optimizer: OptimizerConfig = OptimizerConfig(lr=2e-5)
    """How its parameters are updated."""


@dataclass(frozen=True, kw_only=True)
class SFTExperiment(ExperimentConfig):
    """Supervised fine-tuning: the actor learns the answers of the data set."""

    algorithm: NameText = "sft"
    """What to run."""
    data: DataConfig
    """What is read and how it becomes batches."""
    actor: SFTModelConfig
    """The model that is trained."""
    reward: RewardConfig = RewardConfig(function="exact")
    """What scores the generated answers of an evaluation."""
    reward_model: ClassifierConfig = ClassifierConfig()
    """The model of a component of the reward, where one has it."""
    judge: JudgeConfig = JudgeConfig()
    """The model that is asked about responses, where a component of the reward has it."""
    generation: GenerationConfig = GenerationConfig()
    """How long the answers in an evaluation may be."""


def recipe(experiment: SFTExperiment) -> tuple[MFC, ...]:
    return (
        MFC("actor_train", "actor", "train_step", ("prompts", "answers", "answer_mask")),
        *evaluation(experiment.generation, experiment.reward),
        on_eval(MFC("eval_loss", "actor", "evaluate", ("prompts", "answers", "answer_mask"), ("losses",))),
    )


def batch(experiment: SFTExperiment) -> Batch:
    return learnt(experiment.data)


def check(experiment: SFTExperiment) -> Iterator[Problem]:
    if experiment.data.samples_per_prompt != 1:
        yield Problem(
            ("data.samples_per_prompt",),
            f"data.samples_per_prompt = {experiment.data.samples_per_prompt} must be 1: sft learns each row's answer.",
            "Set data.samples_per_prompt.",
        )


ALGORITHM = Algorithm(
    experiment=SFTExperiment,
    recipe=recipe,
    roles={
        "actor": RoleKind("hpcrl.algos.sft:actor", "vocabulary"),
        **SCORERS,
    },
    rows=ANSWERS,
    made={**MADE, "losses": NUMBERS},
    batch=batch,
    check=check,
    notices=lambda experiment: warm_up_notices(experiment, batch(experiment).updates),
    metrics={
        "actor_train": TRAINED,
        "eval_gen": GENERATED,
        "eval_rew": JUDGED,
        "eval_loss": ("loss", "perplexity"),
    },
)

"""Evaluation: what a model says to prompts, how right it is, and how likely it finds answers. Nothing is trained."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from hpcrl.config.bounds import Natural
from hpcrl.config.classifier import ClassifierConfig
from hpcrl.config.data import DataConfig
from hpcrl.config.environment import ENVIRONMENT, EnvironmentConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import ChangeClass, NameText
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.judge import JudgeConfig
from hpcrl.config.model import ModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.config.samples import SamplesConfig
from hpcrl.data.batch import Batch
from hpcrl.data.form import NUMBERS
from hpcrl.data.rows.answers import COMPARED
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import Problem
from hpcrl.recipes.algorithm import Algorithm, RoleKind
from hpcrl.recipes.environment import GENERATED, turn_problems
from hpcrl.recipes.environment import MADE as TALKED
from hpcrl.recipes.texts import (
    JUDGED,
    MADE,
    SCORERS,
    TALKER,
    judgement,
    one_sample_problems,
    read_in_order,
)


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """What the evaluation is compared with."""

    changes: ClassVar[ChangeClass] = ChangeClass.IDENTITY

    as_step: Natural = 0
    """Draw responses as the evaluation of a training run with this seed does after this step; 0: as each of its own
    steps."""


@dataclass(frozen=True, kw_only=True)
class EvaluateExperiment(ExperimentConfig):
    """A model on the rows of data.train: its responses are scored and left in samples/, and its loss on the answers.

    How responses are drawn is said by generation.evaluation, as for an evaluation while training.
    """

    algorithm: NameText = "evaluate"
    """What to run."""
    data: DataConfig
    """What is read and how it becomes batches."""
    actor: ModelConfig
    """The model that is evaluated."""
    samples: SamplesConfig = SamplesConfig(per_step="all")
    """What is kept of what the model said."""
    reward: RewardConfig = RewardConfig(function="exact")
    """What scores a response."""
    reward_model: ClassifierConfig = ClassifierConfig()
    """The model of a component of the reward, where one has it."""
    judge: JudgeConfig = JudgeConfig()
    """The model that is asked about responses, where a component of the reward has it."""
    environment: EnvironmentConfig = EnvironmentConfig()
    """What the model talks with between the turns of a response, where there is something."""
    generation: GenerationConfig = GenerationConfig()
    """How responses are drawn."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """What the evaluation is compared with."""


def recipe(experiment: EvaluateExperiment) -> tuple[MFC, ...]:
    return (
        *judgement(experiment.generation, experiment.reward, experiment.environment),
        MFC("eval_loss", "actor", "evaluate", ("prompts", "answers", "answer_mask"), ("losses",)),
    )


def batch(experiment: EvaluateExperiment) -> Batch:
    return read_in_order(experiment.data)


def check(experiment: EvaluateExperiment) -> Iterator[Problem]:
    yield from one_sample_problems(
        experiment, "generation.evaluation.samples_per_prompt says how many responses it draws"
    )
    yield from turn_problems(experiment.environment, experiment)


ALGORITHM = Algorithm(
    experiment=EvaluateExperiment,
    recipe=recipe,
    roles={
        "actor": RoleKind("hpcrl.algos.evaluate:actor", "vocabulary"),
        ENVIRONMENT: TALKER,
        **SCORERS,
    },
    rows=COMPARED,
    made={**MADE, **TALKED, "losses": NUMBERS},
    batch=batch,
    check=check,
    metrics={"eval_gen": GENERATED, "eval_rew": JUDGED, "eval_loss": ("loss", "perplexity")},
)

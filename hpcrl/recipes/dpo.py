"""Direct preference optimisation: the actor learns from pairs, without a reward model (Rafailov et al. 2023).

`dpo.loss` ipo is Azar et al.'s (2023), `dpo.label_smoothing` above 0 Mitchell's cDPO (2023). Defaults are TRL's.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from hpcrl.config.bounds import Positive
from hpcrl.config.data import DataConfig
from hpcrl.config.ema import EMAConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import ChangeClass, NameText
from hpcrl.config.model import OptimizerConfig, ReferenceConfig, TrainedModelConfig
from hpcrl.data.batch import Batch
from hpcrl.data.form import NUMBERS
from hpcrl.data.rows.pairs import PAIRS
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import Problem
from hpcrl.recipes.algorithm import Algorithm, RoleKind, on_eval
from hpcrl.recipes.texts import TRAINED, learnt, one_sample_problems, warm_up_notices


@dataclass(frozen=True, kw_only=True)
class DPOConfig:
    """The loss over pairs."""

    changes: ClassVar[ChangeClass] = ChangeClass.NUMBERS

    loss: Literal["sigmoid", "ipo"] = "sigmoid"
    """sigmoid (DPO) of log-ratios summed over an answer, or ipo: their square distance to 1 / (2 beta), of log-ratios
    per token."""
    beta: Positive = 0.1
    """How closely the actor is held to the reference: higher is closer."""
    label_smoothing: Annotated[float, Meta(ge=0, lt=0.5, description="at least 0 and below 0.5")] = 0.0
    """The share of pairs whose sides are taken to be confused (cDPO); for sigmoid only."""
    reference_ema: EMAConfig = EMAConfig()
    """Whether the reference follows the actor (TR-DPO, Gorbatovski et al. 2024)."""


@dataclass(frozen=True, kw_only=True)
class DPOModelConfig(TrainedModelConfig):
    """The policy that learns from pairs."""

    optimizer: OptimizerConfig = OptimizerConfig(lr=1e-6, weight_decay=0.0, schedule="linear")
    """How its parameters are updated."""


@dataclass(frozen=True, kw_only=True)
class DPOExperiment(ExperimentConfig):
    """Direct preference optimisation: the actor learns to prefer the chosen answer of a pair."""

    algorithm: NameText = "dpo"
    """What to run."""
    data: DataConfig
    """What is read and how it becomes batches."""
    actor: DPOModelConfig
    """The policy."""
    reference: ReferenceConfig
    """The policy that the actor is held close to."""
    dpo: DPOConfig = DPOConfig()
    """The loss over pairs."""


PAIR = ("prompts", "chosen", "rejected")
REFERENCE = ("ref_chosen", "ref_rejected")
PREFERRED = ("accuracy", "margin", "chosen_reward", "rejected_reward", "chosen_logp", "rejected_logp")

CALLS = (
    MFC("ref_inf", "reference", "inference", PAIR, REFERENCE),
    MFC("actor_train", "actor", "train_step", (*PAIR, *REFERENCE)),
    on_eval(MFC("eval_ref", "reference", "inference", PAIR, REFERENCE)),
    on_eval(MFC("eval_pairs", "actor", "evaluate", (*PAIR, *REFERENCE), ("chosen_rewards", "rejected_rewards"))),
)

FOLLOW = MFC("ref_blend", "reference", "blend", (), blends="actor")


def recipe(experiment: DPOExperiment) -> tuple[MFC, ...]:
    return (*CALLS, *(FOLLOW,) * (experiment.dpo.reference_ema.decay is not None))


def reference_decay(experiment: DPOExperiment, step: int) -> float:
    """The share of its own parameters that the reference keeps."""
    return experiment.dpo.reference_ema.at(step)


def batch(experiment: DPOExperiment) -> Batch:
    return learnt(experiment.data)


def check(experiment: DPOExperiment) -> Iterator[Problem]:
    yield from one_sample_problems(experiment, "a row's pairs are one sample")
    dpo = experiment.dpo
    if dpo.loss == "ipo" and dpo.label_smoothing:
        yield Problem(
            ("dpo.loss", "dpo.label_smoothing"),
            f"dpo.label_smoothing = {dpo.label_smoothing:g} must be 0 with dpo.loss = ipo: only sigmoid has it.",
            "Set dpo.label_smoothing.",
        )


ALGORITHM = Algorithm(
    experiment=DPOExperiment,
    recipe=recipe,
    roles={
        "actor": RoleKind("hpcrl.algos.dpo:actor", "vocabulary"),
        "reference": RoleKind("hpcrl.algos.dpo:reference", "vocabulary", decay=reference_decay),
    },
    rows=PAIRS,
    made=dict.fromkeys((*REFERENCE, "chosen_rewards", "rejected_rewards"), NUMBERS),
    batch=batch,
    check=check,
    notices=lambda experiment: warm_up_notices(experiment, batch(experiment).updates),
    metrics={"actor_train": (*TRAINED, *PREFERRED), "eval_pairs": ("loss", *PREFERRED)},
)

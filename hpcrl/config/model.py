"""A role's model, where it runs and how it is trained."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from hpcrl.config.bounds import Count, Natural, NonNegative, Positive, Share
from hpcrl.config.fields import ChangeClass, LikeSetting, ModelText, NameText, sections_of

Beta = Annotated[float, Meta(ge=0, lt=1)]


@dataclass(frozen=True, kw_only=True)
class PlacementConfig:
    """Which workers hold a role."""

    layout: Annotated[str | None, ChangeClass.PLACEMENT] = None
    """How the workers split the role, e.g. d4 or d2t1p2 (data, tensor, pipeline); null: data over all of its mesh."""
    mesh: Annotated[str | None, ChangeClass.PLACEMENT] = None
    """The workers that hold the role, by rank: "0", "0-3" or "0,2-3"; null takes all."""


@dataclass(frozen=True, kw_only=True)
class CPUPlacementConfig(PlacementConfig):
    """Which workers hold a role that needs no model: those of the models, or some of its own."""

    workers: Annotated[Natural, ChangeClass.PLACEMENT] = 0
    """CPU workers of its own on each node, which load no model; 0: model workers hold it, between their other calls."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW and its learning-rate schedule."""

    changes: ClassVar[ChangeClass] = ChangeClass.NUMBERS

    lr: Positive = 1e-6
    """Peak learning rate."""
    betas: Annotated[tuple[Beta, Beta], Meta(description="two numbers from 0 to below 1")] = (0.9, 0.999)
    """AdamW's decay of the two moments."""
    eps: Positive = 1e-8
    """AdamW's epsilon."""
    weight_decay: NonNegative = 0.01
    """AdamW's weight decay; norms and biases have none."""
    grad_clip: NonNegative = 1.0
    """Bound of the global gradient norm; 0 does not clip."""
    max_skipped: Natural = 10
    """Updates in a row that are skipped because their gradient is not finite; the run ends at one more."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """The learning rate after warm-up."""
    warmup_steps: Natural = 0
    """Optimizer steps of linear warm-up: the u-th of w has u / (w + 1) of the peak, so that none has a rate of 0 (in
    transformers the first has). Those that an early stop leaves out count."""
    min_lr_ratio: Share = 0.0
    """Where linear and cosine schedules end, as a share of lr."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig(PlacementConfig):
    """A model that is not trained."""

    changes: ClassVar[ChangeClass] = ChangeClass.IDENTITY

    path: ModelText
    """A folder in Hugging Face format (config.json, *.safetensors, tokenizer.json), or ORG/NAME of the hub if it is in
    the local cache; the run keeps to the commit that is there at submission."""
    dtype: Literal["fp32", "bf16", "fp64"] = "fp32"
    """What it computes in; a trained role keeps fp32 master weights beside bf16. fp64 is for checking numerics."""
    family: NameText | None = None
    """What reads its files: a model_type that hpcrl knows, or your own as file.py:NAME; null: its model_type."""
    backend: NameText = "native"
    """What holds, trains and runs it: one of hpcrl's backends, or your own as file.py:NAME."""
    micro_batch_tokens: Annotated[Count, ChangeClass.PLACEMENT] = 16384
    """Most tokens in one forward pass on a worker, where a prompt that several rows begin with counts once. The rows of
    a sample (a pair) always go together."""


@dataclass(frozen=True, kw_only=True)
class ReferenceConfig(ModelConfig):
    """A model that the actor is held close to."""

    path: Annotated[ModelText, LikeSetting("actor.path")]
    """A folder or name as actor.path is one; what the actor begins from, if left out. Not read where nothing is held
    to it."""


@dataclass(frozen=True, kw_only=True)
class TrainedModelConfig(ModelConfig):
    """A model that is trained."""

    optimizer: OptimizerConfig = OptimizerConfig()
    """How its parameters are updated."""


def models_of(experiment: Any) -> dict[str, ModelConfig]:
    """Role → its model, of the roles that have one."""
    return sections_of(experiment, ModelConfig)

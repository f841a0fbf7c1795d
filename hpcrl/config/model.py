"""A role's model, where it runs and how it is trained."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from hpcrl.config.bounds import Count, Natural, NonNegative, Positive, Share
from hpcrl.config.fields import ChangeClass, LikeSetting, ModelText, NameText, PathText, sections_of, settings

Beta = Annotated[float, Meta(ge=0, lt=1)]
Between = Literal["keep", "host", "drop"]
"""What becomes of a replica's parameters between its calls: they stay, wait in the host's memory, or go."""
Offload = Literal["none", "optimizer", "parameters"]
"""What of a model is always in the host's memory; each has what is before it, too."""


@dataclass(frozen=True, kw_only=True)
class PlacementConfig:
    """Which workers hold a role."""

    layout: Annotated[str | None, ChangeClass.PLACEMENT] = None
    """How the workers split the role, e.g. d4 or d2t1p2 (data, tensor, pipeline; in any order); null: data over all of
    its mesh."""
    mesh: Annotated[str | None, ChangeClass.PLACEMENT] = None
    """The workers that hold the role, by rank ("0", "0-3", "0,2-3") or by node, counted from 0 ("node1", "node[0-1]",
    "node0:0,1,2,3"); null takes all."""


class CallPlacement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a call is made that is not made at the home of its role."""

    layout: str | None = None
    """None: data over all of its mesh."""
    mesh: str | int | None = None
    """None: that of its role's home. A single rank is a number in YAML."""
    backend: str | None = None
    """None: that of its role."""
    python: str | None = None
    """The interpreter that runs its backend's server; None: the one that runs hpcrl."""
    micro_batch_tokens: Annotated[int, Meta(ge=1)] | None = None
    """None: that of its role."""
    between: Between | None = None


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
class BetweenConfig:
    """What of a role leaves its workers' devices between calls, so that other roles have the room."""

    changes: ClassVar[ChangeClass] = ChangeClass.PLACEMENT

    parameters: Literal["keep", "host"] = "keep"
    """Its parameters: keep, or host (they wait in the host's memory)."""


@dataclass(frozen=True, kw_only=True)
class TrainedBetweenConfig(BetweenConfig):
    """What of a trained role leaves its workers' devices between calls, so that other roles have the room."""

    gradients: Literal["keep", "host", "drop"] = "keep"
    """Room for its gradients: keep, host, or drop (they are of no use between two calls)."""
    optimizer: Literal["keep", "host"] = "keep"
    """Its masters and moments: keep, or host."""


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
    model: Annotated[Literal["auto", "own", "transformers"], ChangeClass.PLACEMENT] = "auto"
    """Whose code computes it: hpcrl's own, transformers' (any decoder that it has, docs/models.md), or (auto) hpcrl's
    where that knows all of its config.json, and else transformers'."""
    backend: Annotated[NameText, ChangeClass.PLACEMENT] = "native"
    """What holds, trains and runs it: one of hpcrl's backends (docs/backends.md), or your own as file.py:NAME."""
    micro_batch_tokens: Annotated[Count, ChangeClass.PLACEMENT] = 16384
    """Most tokens in one forward pass on a worker, where a prompt that several rows begin with counts once. The rows of
    a sample (a pair) always go together."""
    between: BetweenConfig = BetweenConfig()
    """What of it leaves the devices between calls."""
    offload: Annotated[Literal["none", "parameters"], ChangeClass.PLACEMENT] = "none"
    """What of it is always in the host's memory: nothing, or each worker's part of its parameters, of which a device
    has a block only while it computes (backends fsdp and zero3, on several workers)."""
    experts: Annotated[Literal["inner", "whole"], ChangeClass.PLACEMENT] = "inner"
    """What a tensor-parallel worker has of a model with experts: some of the neurons of every expert (inner), which
    keeps all equally busy, or some experts whole, whose products are larger."""


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters (LoRA, arXiv 2106.09685), which alone are trained: a matrix W stays as it is, and is used as
    W + alpha / rank · A · B."""

    changes: ClassVar[ChangeClass] = ChangeClass.IDENTITY

    rank: Count | None = None
    """Columns of A and rows of B; null trains all parameters of the model."""
    alpha: Positive = 16.0
    """What A·B is multiplied by, times the rank."""
    targets: tuple[str, ...] = ()
    """The linear layers that have adapters, by what their names end with at Hugging Face (q_proj, down_proj); none: all
    of the blocks."""
    path: PathText | None = None
    """A folder that PEFT has written, with the adapters to begin from; null: A is random and B zero."""


@dataclass(frozen=True, kw_only=True)
class ReferenceConfig(ModelConfig):
    """A model that the actor is held close to."""

    of: Literal["actor"] | None = None
    """actor: it is the actor's own model without its adapters (actor.lora), where the actor is; null: a model of its
    own."""

    path: Annotated[ModelText, LikeSetting("actor.path")]
    """A folder or name as actor.path is one; what the actor begins from, if left out. Not read where nothing is held
    to it."""


@dataclass(frozen=True, kw_only=True)
class TrainedModelConfig(ModelConfig):
    """A model that is trained."""

    optimizer: OptimizerConfig = OptimizerConfig()
    """How its parameters are updated."""
    lora: LoraConfig = LoraConfig()
    """Adapters that are trained in the place of its parameters."""
    router_aux_coef: NonNegative = 0.0
    """Weight of the loss that has routers use all experts equally, over the whole mini-batch (0.001 in many models'
    config.json). Where it is not 0, a pass without gradients first asks all routers."""
    router_z_coef: NonNegative = 0.0
    """Weight of the mean square of the logarithm of the sum of routers' exponentials, which keeps their logits
    small."""
    recompute: Annotated[bool, ChangeClass.PLACEMENT] = False
    """Whether training keeps of each block only what it was given, and computes the rest again in the backward pass
    (activation checkpointing): a fraction of the activations, about a third more time, the same numbers."""
    reduce: Annotated[Literal["update", "micro_batch"], ChangeClass.PLACEMENT] = "update"
    """When a backend that shards gradients adds them up over workers: once an update (as native, to the same bits; each
    worker has the whole gradient meanwhile), or after each micro-batch, which needs less memory and sends more."""
    between: TrainedBetweenConfig = TrainedBetweenConfig()
    """What of it leaves the devices between calls."""
    offload: Annotated[Offload, ChangeClass.PLACEMENT] = "none"  # type: ignore[assignment]  # One more than of others.
    """What of it is always in the host's memory: nothing; its masters and moments (optimizer), which are updated there,
    more slowly (all backends but megatron); or each worker's part of its parameters, too (parameters), of which a
    device has a block only while it computes (backends fsdp and zero3; on one worker it is optimizer)."""


def offload_of(model: ModelConfig) -> Offload:
    """What of a model is always in the host's memory, at its role's home."""
    return model.offload


def lora_of(model: ModelConfig) -> LoraConfig | None:
    """The adapters of a model that has some."""
    return model.lora if isinstance(model, TrainedModelConfig) and model.lora.rank is not None else None


def shared_with(experiment: Any, role: str) -> str:
    """The role whose model this one is, without its adapters; empty where it has one of its own."""
    section = getattr(experiment, role, None)
    return section.of or "" if isinstance(section, ReferenceConfig) else ""


def models_of(experiment: Any) -> dict[str, ModelConfig]:
    """Role → its model, of the roles that have one."""
    return {role: model for role, model in sections_of(experiment, ModelConfig).items() if model.path}


def following_roles(experiment: Any) -> frozenset[str]:
    """Those whose model is another role's, as it is where none is given: what is wrong with it is said of that one."""
    folders = {f"{role}.path": model.path for role, model in models_of(experiment).items()}
    follows = {setting.key: setting.like for setting in settings(type(experiment)) if setting.key in folders}
    return frozenset(
        key.removesuffix(".path") for key, of in follows.items() if of is not None and folders[key] == folders.get(of)
    )

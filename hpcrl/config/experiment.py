"""The root of a run's configuration: one dataclass per algorithm."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import ControlConfig
from hpcrl.config.data import DataConfig
from hpcrl.config.fields import ChangeClass, PathText
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import CriticConfig, ModelConfig, PlacementConfig, SFTModelConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.recipes.ppo import PPOConfig
from hpcrl.recipes.toy import ToyConfig

RunName = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z", description="letters, digits, . _ and - after a letter or digit"),
]


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """What every run has."""

    changes: ClassVar[ChangeClass] = ChangeClass.IDENTITY

    algorithm: str
    """What to run."""
    name: RunName = "run"
    """The first part of the run directory's name."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1, description="between 0 and 2^63 - 1")] = 1
    """Where all random draws come from."""
    run_root: PathText = "runs"
    """The folder for run directories; it must be seen by all nodes."""
    deterministic: Annotated[bool, ChangeClass.NUMBERS] = True
    """Refuse to continue after an interruption if a replayed train step gives other bits than it did."""
    cluster: ClusterConfig = ClusterConfig()
    """Nodes, workers and deadlines."""
    control: ControlConfig = ControlConfig()
    """How long the run is, and when it checkpoints, evaluates and exports."""


@dataclass(frozen=True, kw_only=True)
class SFTExperiment(ExperimentConfig):
    """Supervised fine-tuning: the actor learns the answers of the data set."""

    algorithm: Literal["sft"] = "sft"
    """What to run."""
    data: DataConfig
    """What is read and how it becomes batches."""
    actor: SFTModelConfig
    """The model that is trained."""
    reward: RewardConfig = RewardConfig(function="exact")
    """What scores the generated answers of an evaluation."""
    generation: GenerationConfig = GenerationConfig()
    """How long the answers in an evaluation may be."""


@dataclass(frozen=True, kw_only=True)
class PPOExperiment(ExperimentConfig):
    """Proximal policy optimisation: actor, critic, reference, and a reward function."""

    algorithm: Literal["ppo"] = "ppo"
    """What to run."""
    data: DataConfig
    """What is read and how it becomes batches."""
    actor: TrainedModelConfig
    """The policy."""
    critic: CriticConfig
    """The value function: a model whose head is replaced by one that gives a number."""
    reference: ModelConfig
    """The policy that the actor is held close to."""
    reward: RewardConfig
    """What scores a response."""
    generation: GenerationConfig = GenerationConfig()
    """How responses are sampled."""
    ppo: PPOConfig = PPOConfig()
    """PPO's hyper-parameters."""


@dataclass(frozen=True, kw_only=True)
class ToyExperiment(ExperimentConfig):
    """PPO's graph over numpy vectors: tries a cluster's plumbing in seconds."""

    algorithm: Literal["toy"] = "toy"
    """What to run."""
    toy: ToyConfig = ToyConfig()
    """The size of the toy."""
    actor: PlacementConfig = PlacementConfig()
    """Stands for the policy."""
    critic: PlacementConfig = PlacementConfig()
    """Stands for the value function."""
    reference: PlacementConfig = PlacementConfig()
    """Stands for the reference."""
    reward: PlacementConfig = PlacementConfig()
    """Stands for the reward."""


Experiment = SFTExperiment | PPOExperiment | ToyExperiment

EXPERIMENTS: Mapping[str, type[Experiment]] = MappingProxyType(
    {"sft": SFTExperiment, "ppo": PPOExperiment, "toy": ToyExperiment}
)


def to_dict(experiment: Experiment) -> dict[str, Any]:
    """The experiment as JSON holds it, lists for tuples; `from_dict` undoes it."""
    return msgspec.json.decode(msgspec.json.encode(experiment))


def from_dict(values: Mapping[str, Any]) -> Experiment:
    """An experiment from what `to_dict` gave. Raises msgspec.ValidationError for anything else."""
    return msgspec.convert(values, EXPERIMENTS[values["algorithm"]])

"""Makes what the roles of one worker are made of: engines from folders, the reward function, the texts of the data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from hpcrl.algos.reward import Reward
from hpcrl.algos.role import Role
from hpcrl.backends.inference import InferenceEngine, Site
from hpcrl.backends.native import NativeEngine
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.model import ModelConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.data.datasets import Texts
from hpcrl.models.pretrained import new_model
from hpcrl.models.transformer import Transformer
from hpcrl.parallel.context import Group
from hpcrl.placement.fields import HeadKind
from hpcrl.rewards.run import RewardFunction

DTYPES: Mapping[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}

E = TypeVar("E", bound=ExperimentConfig)


@dataclass(frozen=True)
class Builder(Generic[E]):
    """For one role of an experiment of `steps` training steps. `group` are the role's data-parallel ranks."""

    role: str
    experiment: E
    steps: int
    group: Group
    device: torch.device
    texts: Texts

    def trained(self, config: TrainedModelConfig, head: HeadKind = "vocabulary") -> NativeEngine:
        model = self._model(config, head, trainable=True)
        return NativeEngine(model, self._site(config, model), config.optimizer)

    def frozen(self, config: ModelConfig, head: HeadKind = "vocabulary") -> InferenceEngine:
        model = self._model(config, head, trainable=False)
        return InferenceEngine(model, self._site(config, model))

    def reward(self, config: RewardConfig) -> Reward:
        return Reward(RewardFunction(config), self.texts)

    def _model(self, config: ModelConfig, head: HeadKind, trainable: bool) -> Transformer:
        """From the folder; a head that is not there is random from the run's seed."""
        return new_model(
            config.path,
            head=head,
            dtype=DTYPES[config.dtype],
            device=self.device,
            trainable=trainable,
            seed=self.experiment.seed,
        )

    def _site(self, config: ModelConfig, model: Transformer) -> Site:
        """A text ends with the tokenizer's EOS or with whatever else the model's folder says."""
        ends = tuple(dict.fromkeys((*self.texts.eos_token_ids, *model.config.eos_token_ids)))
        return Site(self.role, Path(config.path), self.group, config.micro_batch_tokens, ends)


RoleMaker = Callable[[Builder[Any]], Role]

"""Makes what the roles of one worker are made of: engines from folders, the reward function, the texts of the data."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from hpcrl.algos.reward import Reward
from hpcrl.algos.role import Role
from hpcrl.config.experiment import PPOExperiment, SFTExperiment
from hpcrl.config.model import ModelConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.data.datasets import Texts
from hpcrl.engines.flat import FlatTransformer, open_model
from hpcrl.engines.inference import EngineContext, InferenceEngine
from hpcrl.engines.native import NativeEngine
from hpcrl.errors import DataError
from hpcrl.families.config import HeadKind
from hpcrl.parallel.context import Group
from hpcrl.rewards.run import RewardFunction

DTYPES: Mapping[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}

E = TypeVar("E", bound=SFTExperiment | PPOExperiment)


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
        with self._reading(config):
            model, parameters = self._open(config, head, trainable=True)
            engine = NativeEngine(model, self._site(config, model), config.optimizer)
            engine.load(parameters)
        return engine

    def frozen(self, config: ModelConfig, head: HeadKind = "vocabulary") -> InferenceEngine:
        with self._reading(config):
            model, parameters = self._open(config, head, trainable=False)
            model.load(parameters)
        return InferenceEngine(model, self._site(config, model))

    def reward(self, config: RewardConfig) -> Reward:
        return Reward(RewardFunction(config), self.texts)

    def _open(
        self, config: ModelConfig, head: HeadKind, trainable: bool
    ) -> tuple[FlatTransformer, Iterator[tuple[str, torch.Tensor]]]:
        """The folder's model and its parameters; a value head that is not there is random from the run's seed."""
        return open_model(
            config.path,
            family=config.family,
            head=head,
            dtype=DTYPES[config.dtype],
            device=self.device,
            trainable=trainable,
            seed=self.experiment.seed,
        )

    @contextmanager
    def _reading(self, config: ModelConfig) -> Iterator[None]:
        """What is wrong with the folder is said with the setting that names it."""
        try:
            yield
        except DataError as error:
            raise DataError(f"{self.role}.path = {config.path} is no model for this role.\n{error}") from None

    def _site(self, config: ModelConfig, model: FlatTransformer) -> EngineContext:
        """A text ends with the tokenizer's EOS or with whatever else the model's folder says. An export takes along
        the tokenizer of the run, wherever the model came from."""
        ends = tuple(dict.fromkeys((*self.texts.eos_token_ids, *model.config.eos_token_ids)))
        tokenizer = Path(self.experiment.data.tokenizer or self.experiment.actor.path)
        return EngineContext(self.role, tokenizer, self.group, config.micro_batch_tokens, ends)


RoleMaker = Callable[[Builder[Any]], Role]

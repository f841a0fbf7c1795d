"""Makes what the roles of one worker are made of: engines from folders, the reward function, the texts of the data."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from hpcrl.algos.reward import Reward
from hpcrl.algos.role import Role
from hpcrl.config.experiment import PPOExperiment, SFTExperiment
from hpcrl.config.model import ModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.data.datasets import Texts
from hpcrl.engines.engine import Engine, EngineContext
from hpcrl.errors import DataError
from hpcrl.families.config import HeadKind
from hpcrl.parallel.context import Group
from hpcrl.placement.abilities import backend_of
from hpcrl.plugins import load
from hpcrl.rewards.run import RewardFunction

E = TypeVar("E", bound=SFTExperiment | PPOExperiment)


@dataclass(frozen=True)
class Builder(Generic[E]):
    """For one role of an experiment. `group` are the role's data-parallel ranks; `steps` the run's training steps, None
    for a role that is not trained."""

    role: str
    experiment: E
    steps: int | None
    group: Group
    device: torch.device
    texts: Texts

    def engine(self, config: ModelConfig, head: HeadKind = "vocabulary") -> Engine:
        """The role's engine, made by its backend. What is wrong with the folder is said with the setting."""
        context = EngineContext(
            role=self.role,
            model=config,
            head=head,
            seed=self.experiment.seed,
            group=self.group,
            device=self.device,
            tokenizer=Path(self.experiment.data.tokenizer or self.experiment.actor.path),
            eos_token_ids=self.texts.eos_token_ids,
            steps=self.steps,
        )
        try:
            return load(backend_of(self.role, config).engine).open(context)
        except DataError as error:
            raise DataError(f"{self.role}.path = {config.path} is no model for this role.\n{error}") from None

    def reward(self, config: RewardConfig) -> Reward:
        return Reward(RewardFunction(config), self.texts)


RoleMaker = Callable[[Builder[Any]], Role]

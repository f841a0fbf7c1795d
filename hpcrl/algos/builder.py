"""Makes what the roles of one worker are made of: engines from folders, the reward function, the texts of the data."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import torch

from hpcrl.config.data import tokenizer_of
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.data.tokens import Tokens
from hpcrl.engines.engine import Engine, EngineContext
from hpcrl.errors import ConfigurationError, DataError
from hpcrl.families.config import HeadKind
from hpcrl.models.kernels import Kernels
from hpcrl.parallel.replica import ReplicaGroups
from hpcrl.placement.abilities import Chosen, device_problems
from hpcrl.placement.judges import model_of
from hpcrl.placement.placing import under
from hpcrl.plugins import load
from hpcrl.workers.host import Door
from hpcrl.workers.meter import Meter
from hpcrl.workers.role import RoleContext

E = TypeVar("E", bound=ExperimentConfig)


@dataclass(frozen=True, kw_only=True)
class Builder(RoleContext[E]):
    """For one role of an experiment. `groups` are this rank's in the role's replica; `steps` the run's training steps,
    None for a role that is not trained, and `blended` whether another role's parameters are blended into it."""

    backend: str
    """What holds its model here; empty where it has no choice."""
    head: HeadKind | None
    steps: int | None
    blended: bool
    at_home: bool
    """Whether it is the role's home, and no copy, which has all of its model on its devices."""
    empty: bool
    groups: ReplicaGroups
    device: torch.device
    kernels: Kernels
    told: Callable[[str], None]
    """Told how far loading is."""
    meter: Meter = field(default_factory=Meter)
    """Told what its model does, in a call."""
    server: Door | None = None
    """Where what makes responses of it is reached, if that is none of its workers."""
    shared: Engine | None = None
    """That of the role whose model this one is, without its adapters."""

    def engine(self, tokens: Tokens | None = None, folder: Path | None = None) -> Engine:
        """The role's engine, made by its backend. What is wrong with the folder is said with the setting. `tokens` are
        those that it reads and writes, of this `folder`, where they are not the run's."""
        if self.shared is not None:
            shared: Engine = load("hpcrl.engines.without_adapters:WithoutAdapters")(self.shared)
            return shared
        config, tokenizer = model_of(under(self.section, self.backend)), tokenizer_of(self.experiment)
        assert tokenizer is not None and config is not None and self.head is not None, "an engine holds its model"
        config = config if self.at_home else replace(config, offload="none")
        context = EngineContext(
            role=self.role,
            model=config,
            head=self.head,
            seed=self.experiment.seed,
            groups=self.groups,
            device=self.device,
            tokenizer=folder or tokenizer[1],
            eos_token_ids=self.texts.eos_token_ids if tokens is None else tokens.eos_ids,
            steps=self.steps,
            blended=self.blended,
            empty=self.empty,
            kernels=self.kernels,
            told=self.told,
            meter=self.meter,
            server=self.server,
        )
        chosen = Chosen.at_home(self.role, config)
        said = f"cluster.device = {self.experiment.cluster.device} has come to {self.device.type} on this worker's node"
        if wrong := list(device_problems(chosen, self.device.type, said)):
            raise ConfigurationError(wrong)
        try:
            return load(chosen.backend().engine).open(context)
        except DataError as error:
            raise DataError(f"{self.role}.path = {config.path} is no model for this role.\n{error}") from None

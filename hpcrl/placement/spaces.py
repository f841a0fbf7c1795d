"""A role's model in one space and in the other: whether a run may change between them, and shards of either for both.
Loads no torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.model import ModelConfig, lora_of, models_of
from hpcrl.durable.shards import Shard
from hpcrl.durable.translated import translated
from hpcrl.errors import ConfigurationError, Problem
from hpcrl.families.adapters import with_adapters
from hpcrl.families.config import DecoderConfig, HeadKind
from hpcrl.families.reader import Kind, read_config
from hpcrl.families.spaces import KINDS, Space, Translation, space_of, strange_tensor
from hpcrl.recipes.algorithm import algorithm_of


@dataclass(frozen=True)
class RoleModel:
    """What is trained of a role, in any space: under its head, and adapters alone where it has some."""

    role: str
    section: ModelConfig
    head: HeadKind

    @staticmethod
    def of(experiment: ExperimentConfig, role: str) -> "RoleModel":
        head = algorithm_of(experiment).roles[role].head
        assert head is not None, "a role that is saved has a model"
        return RoleModel(role, getattr(experiment, role), head)

    def config(self, kind: Kind | None = None) -> DecoderConfig:
        """As its setting has it, or as of another `kind`. Raises ConfigurationError."""
        section = self.section
        family_key = f"{self.role}.family"
        config = read_config(Path(section.path), section.family, family_key, kind or section.model).with_head(self.head)
        lora = lora_of(section)
        return config if lora is None else with_adapters(config, lora)

    def shards(self, shards: Sequence[Shard], space: Space) -> Sequence[Shard]:
        """Those of a cut as a model in a space reads them; themselves, where they are of it, or name none."""
        written: Space = shards[0].state.get("space", space)
        if written == space:
            return shards
        return translated(shards, Translation(self.config(KINDS[written]), self.config(KINDS[space])))


def space_problems(before: ExperimentConfig, after: ExperimentConfig) -> Iterator[Problem]:
    """Roles that other code is to compute, of whose checkpoints it would not make its parameters. Each version is valid
    by itself."""
    changed = {call.changes for call in algorithm_of(after).calls(after)}
    for role, model in models_of(after).items():
        was: Any = getattr(before, role)
        if role not in changed or was.model == model.model:
            continue
        try:
            old, new = (RoleModel.of(experiment, role).config() for experiment in (before, after))
        except ConfigurationError:  # of a folder that has changed, which is said of itself
            continue
        if space_of(old) != space_of(new) and (name := strange_tensor(old, new)):
            key = f"{role}.model"
            yield Problem(
                (key,),
                f"{key} = {model.model} (was {was.model}) would have other parameters than {role} has been trained "
                f"with: only one of the two has a tensor {name} of this shape.",
                f"Leave {key} as it was, or submit a new run.",
            )

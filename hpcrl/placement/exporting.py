"""What a role's export is made of, and how it is assembled from the shards of a cut: by several workers, or offline.

An algorithm's declaration names the class. Loads no torch, and reads one parameter at a time.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hpcrl.config.data import tokenizer_of
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.model import lora_of
from hpcrl.durable.adapter_folder import AdapterFolder
from hpcrl.durable.digests import digest_of
from hpcrl.durable.model_folder import ModelFolder
from hpcrl.durable.shards import WholeParameters, open_shard
from hpcrl.families.adapters import with_adapters
from hpcrl.families.reader import read_config
from hpcrl.families.spaces import space_of
from hpcrl.placement.spaces import RoleModel
from hpcrl.plugins import load
from hpcrl.recipes.algorithm import algorithm_of

DTYPES: Mapping[str, str] = {"fp32": "float32", "bf16": "bfloat16", "fp64": "float64"}
"""As `<role>.dtype` has it → as config.json does."""


class RoleExport(Protocol):
    """Of one role. Its methods may run in any thread and any process, at the same time for different files."""

    def __init__(self, experiment: Any, role: str) -> None: ...

    arrays: Sequence[str]
    """The arrays of a shard that it needs."""

    @property
    def files(self) -> Sequence[str]:
        """The files that are made of the shards, in one order everywhere: so that they can be shared out."""
        ...

    def write_file(self, folder: Path, file: str, shards: Sequence[Path]) -> None:
        """Assemble one of them from all shards of the role. Raises DamagedFileError where these are not whole."""
        ...

    def write_description(self, folder: Path) -> None:
        """All else that the folder needs."""
        ...

    def digest(self, shards: Sequence[Path]) -> str:
        """Of all that the shards of a cut hold, as the role's host has it. Raises DamagedFileError as above."""
        ...


class HuggingFaceExport:
    """A folder that transformers and vLLM load, in the type that the role computes in; of a role with adapters merged,
    with a folder beside it that PEFT loads."""

    arrays = ("master",)

    def __init__(self, experiment: ExperimentConfig, role: str) -> None:
        section, tokenizer = getattr(experiment, role), tokenizer_of(experiment)
        config = read_config(Path(section.path), section.family, f"{role}.family", section.model)
        self._model = RoleModel.of(experiment, role)
        assert tokenizer is not None, "a role that is trained has a model"
        head, dtype = self._model.head, DTYPES[section.dtype]
        self._folder: ModelFolder | AdapterFolder = ModelFolder.of(config.with_head(head), dtype)
        if (lora := lora_of(section)) is not None:
            self._folder = AdapterFolder(with_adapters(config.with_head(head), lora), config, dtype, Path(section.path))
        self._tokenizer = tokenizer[1]

    @property
    def files(self) -> Sequence[str]:
        return tuple(self._folder.files)

    def write_file(self, folder: Path, file: str, shards: Sequence[Path]) -> None:
        opened = self._model.shards([open_shard(path) for path in shards], space_of(self._folder.config))
        self._folder.write_file(folder, file, WholeParameters(opened).read)

    def write_description(self, folder: Path) -> None:
        self._folder.write_description(folder, self._tokenizer)

    def digest(self, shards: Sequence[Path]) -> str:
        return digest_of([open_shard(path) for path in shards])


def export_of(experiment: ExperimentConfig, role: str) -> RoleExport:
    """Raises ConfigurationError where the role's folder is gone, whose config.json says what the model is."""
    return load(algorithm_of(experiment).export)(experiment, role)

"""What every run's configuration has; an algorithm's own root dataclass adds its sections and roles."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.code import CodeConfig
from hpcrl.config.control import ControlConfig
from hpcrl.config.fields import ChangeClass, NameText, PathText

RunName = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z", description="letters, digits, . _ and - after a letter or digit"),
]


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """What every run has."""

    changes: ClassVar[ChangeClass] = ChangeClass.IDENTITY

    algorithm: NameText
    """What to run."""
    name: Annotated[RunName, ChangeClass.FORK] = "run"
    """The first part of the run directory's name."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1, description="between 0 and 2^63 - 1")] = 1
    """Where all random draws come from."""
    run_root: Annotated[PathText, ChangeClass.FORK] = "runs"
    """The folder for run directories; it must be seen by all nodes."""
    deterministic: Annotated[bool, ChangeClass.PLACEMENT] = True
    """Take deterministic kernels for gradients, and refuse to continue after an interruption if a replayed train step
    gives other bits than it did; where an operation has no such kernel, its name is told and rounding may differ."""
    cluster: ClusterConfig = ClusterConfig()
    """Nodes, workers and deadlines."""
    control: ControlConfig = ControlConfig()
    """How long the run is, and when it checkpoints, evaluates and exports."""
    code: CodeConfig = CodeConfig()
    """What of your code the run takes along."""


@dataclass(frozen=True)
class Catalogue:
    """The algorithms that a configuration may name."""

    names: Callable[[], Sequence[str]]
    """Those that can be called by a bare name."""
    experiment: Callable[[str], type[ExperimentConfig]]
    """The root dataclass of one of these, or of a user's `file.py:NAME`. Raises ConfigurationError."""


def to_dict(experiment: ExperimentConfig) -> dict[str, Any]:
    """The experiment as JSON holds it, lists for tuples."""
    # Of an object that msgspec has made, msgspec would leave out what it has by its class's default.
    return msgspec.json.decode(msgspec.json.encode(asdict(experiment)))


def what_every_run_has(values: Mapping[str, Any]) -> ExperimentConfig:
    """These settings of a configuration as JSON holds it; its algorithm need not be there to read them."""
    return msgspec.convert(values, ExperimentConfig)

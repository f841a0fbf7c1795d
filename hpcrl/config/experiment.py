"""What every run's configuration has; an algorithm's own root dataclass adds its sections and roles."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.code import CodeConfig
from hpcrl.config.control import ControlConfig
from hpcrl.config.fields import ChangeClass, NameText, PathText
from hpcrl.config.model import CallPlacement
from hpcrl.config.run_root import RUN_ROOT
from hpcrl.config.samples import SamplesConfig
from hpcrl.config.search import SearchConfig

RunName = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z", description="letters, digits, . _ and - after a letter or digit"),
]


AllocationText = Annotated[
    str,
    Meta(
        pattern=r"^(manual|pipe_data|pipe_model|heuristic|search|([dtp][1-9][0-9]*){1,3})\Z",
        description="manual, pipe_data, pipe_model, heuristic, search, or a layout like d4t2p1",
    ),
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
    run_root: Annotated[PathText, ChangeClass.FORK] = RUN_ROOT
    """The folder for run directories; it must be seen by all nodes."""
    deterministic: Annotated[bool, ChangeClass.PLACEMENT] = True
    """Take deterministic kernels for gradients, add up in one order over workers, and refuse to continue after an
    interruption if a replayed train step gives other bits than it did; where an operation has no such kernel, its name
    is told and rounding may differ. false leaves sums to NCCL or gloo."""
    cluster: ClusterConfig = ClusterConfig()
    """Nodes, workers and deadlines."""
    control: ControlConfig = ControlConfig()
    """How long the run is, and when it checkpoints, evaluates and exports."""
    samples: SamplesConfig = SamplesConfig()
    """What is kept of what the model said."""
    allocation: Annotated[AllocationText, ChangeClass.PLACEMENT] = "manual"
    """Who says which workers hold which role. manual: the settings of the roles, and calls. Else hpcrl, once: these
    settings, where they are not given, take what it finds, and allocation is manual again. A layout like d4t2p1: every
    model has it, on all workers. pipe_data, pipe_model: a stage on each node, data or layers over the workers of one.
    heuristic: trained roles side by side, each other call where it is fast. search: as `hpcrl search` finds it."""
    search: SearchConfig = SearchConfig()
    """What a search for an allocation goes by."""
    calls: Annotated[Mapping[str, Any], ChangeClass.PLACEMENT] = field(default_factory=dict)
    """Calls that are not made where their role is trained and saved, e.g. {actor_gen: {layout: d4, mesh: 0-3}}.
    Without a layout, data over all of its mesh; without a mesh or a backend, that of the role. `between` says what
    becomes of the parameters there between calls: keep, host (they wait in the host's memory) or drop;
    `micro_batch_tokens` is a bound of the call's own; `python` says which interpreter has vLLM, for backend: vllm.
    An evaluation's call is made where the training's of its kind is, and a further turn of a response where the first
    is, if they are not named themselves."""
    on_nodes: Annotated[Mapping[str, Any], ChangeClass.PLACEMENT] = field(default_factory=dict)
    """Where cluster.nodes is a range: settings that are others on so many nodes, e.g. {"2": {actor.layout: d4},
    "3": {actor.layout: d3t2}}. An allocation writes what it finds for each number here."""
    code: CodeConfig = CodeConfig()
    """What of your code the run takes along."""


@dataclass(frozen=True)
class Catalogue:
    """The algorithms that a configuration may name."""

    names: Callable[[], Sequence[str]]
    """Those that can be called by a bare name."""
    experiment: Callable[[str], type[ExperimentConfig]]
    """The root dataclass of one of these, or of a user's `file.py:NAME`. Raises ConfigurationError."""


def calls_of(experiment: ExperimentConfig) -> dict[str, CallPlacement]:
    """Call → where it is made, as the setting says. Raises msgspec.ValidationError."""
    return msgspec.convert(experiment.calls, dict[str, CallPlacement])


def to_dict(experiment: ExperimentConfig) -> dict[str, Any]:
    """The experiment as JSON holds it, lists for tuples."""
    # Of an object that msgspec has made, msgspec would leave out what it has by its class's default.
    return msgspec.json.decode(msgspec.json.encode(asdict(experiment)))


def what_every_run_has(values: Mapping[str, Any]) -> ExperimentConfig:
    """These settings of a configuration as JSON holds it; its algorithm need not be there to read them."""
    return msgspec.convert(values, ExperimentConfig)

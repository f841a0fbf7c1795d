"""A profile: how long the parts of models take on the workers of a cluster, and what links between these carry. A step
measures one thing on all workers at once; nothing is trained. `hpcrl profile` makes the settings and reads the result.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from hpcrl.config.bounds import Positive
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import ChangeClass, NameText
from hpcrl.config.model import PlacementConfig
from hpcrl.config.samples import SamplesConfig
from hpcrl.data.batch import Batch
from hpcrl.data.form import BYTES
from hpcrl.data.rows.vectors import vector_rows
from hpcrl.dataflow.graph import MFC
from hpcrl.recipes.algorithm import Algorithm, RoleKind


@dataclass(frozen=True, kw_only=True)
class MeasuredConfig:
    """What is measured."""

    changes: ClassVar[ChangeClass] = ChangeClass.IDENTITY

    models: Mapping[str, Any] = field(default_factory=dict)
    """Models by name, as `hpcrl profile` writes them: their config.json, precision, backend, and where to measure."""
    tasks: tuple[str, ...] = ()
    """What each step measures, as `hpcrl profile` writes it: node, links, or a call, a model and its tensor ranks
    (train/actor/2)."""
    minutes: Annotated[Positive, ChangeClass.NUMBERS] = 10.0
    """How long all of it may take, about: less time, fewer points."""


@dataclass(frozen=True, kw_only=True)
class ProfileExperiment(ExperimentConfig):
    """How long the parts of models take, and what links carry. `hpcrl profile` submits it."""

    algorithm: NameText = "profile"
    """What to run."""
    measured: MeasuredConfig = MeasuredConfig()
    """What is measured."""
    profile: PlacementConfig = PlacementConfig()
    """Who measures: all workers together."""
    samples: SamplesConfig = SamplesConfig(per_step="all")
    """What is kept of what was measured."""


CALLS = (MFC("measure", "profile", "inference", ("points",), ("measured",)),)


def workers(experiment: ProfileExperiment) -> int:
    """How many measure; so many rows has a step, which say nothing."""
    return experiment.cluster.most_nodes * experiment.cluster.workers_per_node


ALGORITHM = Algorithm(
    experiment=ProfileExperiment,
    recipe=lambda experiment: CALLS,
    roles={"profile": RoleKind("hpcrl.algos.profile:workers", axes=("dp", "tp", "pp"))},
    rows=vector_rows("points", lambda experiment: (workers(experiment), 1), "cluster.workers_per_node"),
    made={"measured": BYTES},
    batch=lambda experiment: Batch(rows=workers(experiment), shuffled=False),
    host="hpcrl.algos.profile:ProfileHost",
)

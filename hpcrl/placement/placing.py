"""Which workers hold a role, and which make a call, as the settings say. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from hpcrl.config.experiment import ExperimentConfig, calls_of
from hpcrl.config.fields import sections_of
from hpcrl.config.model import CallPlacement, CPUPlacementConfig, ModelConfig, PlacementConfig, models_of, shared_with
from hpcrl.dataflow.graph import MFC
from hpcrl.placement.layouts import Layout, Ranks, parse_layout, parse_mesh
from hpcrl.recipes.algorithm import SCRIPT, algorithm_of


class Placed(NamedTuple):
    """A layout, the workers in its order, and who holds a model there."""

    layout: Layout
    ranks: Ranks
    backend: str = ""
    """What holds the model there; empty of a role that has none."""
    python: str = ""
    """What runs that one's server, as the setting has it."""

    def on(self, layout: Layout, ranks: Ranks) -> "Placed":
        """The same elsewhere."""
        return self._replace(layout=layout, ranks=ranks)

    def __str__(self) -> str:
        return f"laid out as {self.layout} on worker{'s' * (len(self.ranks) > 1)} {', '.join(map(str, self.ranks))}"


def cpu_roles(experiment: ExperimentConfig) -> tuple[str, ...]:
    """Whose each CPU worker of a node is, in their order: of the roles that are called and have some of their own."""
    algorithm = algorithm_of(experiment)
    sections = sections_of(experiment, CPUPlacementConfig)
    roles = dict.fromkeys(call.role for call in algorithm.calls(experiment) if call.role in sections)
    return tuple(role for role in roles for _ in range(sections[role].workers))


def mesh_of(experiment: ExperimentConfig, role: str, nodes: int) -> Ranks:
    """The workers that hold a role. Raises ValueError where its mesh names none."""
    role = shared_with(experiment, role) or role
    slots, owners = experiment.cluster.workers_per_node, cpu_roles(experiment)
    if role == SCRIPT:
        return (nodes * (slots + len(owners)),)
    if role in owners:
        return tuple(nodes * slots + rank for rank, owner in enumerate(owners * nodes) if owner == role)
    return parse_mesh(getattr(experiment, role).mesh, nodes, slots)


def home_of(experiment: ExperimentConfig, role: str, nodes: int) -> Placed:
    """Where a role is trained and saved; one that is another's model is where that is. Raises ValueError where there is
    no such layout or mesh."""
    role = shared_with(experiment, role) or role
    if role == SCRIPT:
        return _placed(None, mesh_of(experiment, role, nodes), "")
    return _placed(getattr(experiment, role).layout, mesh_of(experiment, role, nodes), _backend(experiment, role))


def entries_of(experiment: ExperimentConfig, calls: Sequence[MFC]) -> dict[str, tuple[str, CallPlacement]]:
    """Call → the name under which `calls` places it, and how. Those that are made at home are not in it.

    One that is not placed itself goes with its `leaders`; one that is made without pipeline stages is made on its
    role's workers with as many more data-parallel parts. Raises msgspec.ValidationError.
    """
    given, found = calls_of(experiment), {}
    for call in calls:
        if name := next((name for name in (call.name, *leaders(call, calls)) if name in given), None):
            found[call.name] = name, given[name]
        elif call.dispatch.without_stages and (layout := _without_stages(experiment, call.role)) is not None:
            found[call.name] = call.name, CallPlacement(layout=layout)
    return found


def _without_stages(experiment: ExperimentConfig, role: str) -> str | None:
    """The layout of a role with its stages as data-parallel parts; None where it has no stages."""
    written = getattr(experiment, role).layout
    layout = Layout(dp=1) if written is None else parse_layout(written)
    return str(Layout(dp=layout.dp * layout.pp, tp=layout.tp)) if layout.pp > 1 else None


def leaders(call: MFC, calls: Sequence[MFC]) -> tuple[str, ...]:
    """The calls that it goes with, the nearest first: a further turn with the first, an evaluation's with the first of
    training of its role and kind."""
    evaluates = call.dataset == "eval"
    alike = (
        other.name
        for other in (calls if evaluates else ())
        if (other.role, other.kind, other.dataset) == (call.role, call.kind, "train")
    )
    return tuple(filter(None, (call.dispatch.follows, next(alike, ""))))


def place_of(experiment: ExperimentConfig, role: str, entry: CallPlacement, nodes: int) -> Placed:
    """Where an entry of `calls` places a call of a role. Raises ValueError where there is no such layout or mesh."""
    backend = entry.backend or _backend(experiment, role)
    if entry.mesh is None:
        ranks = mesh_of(experiment, role, nodes)
    else:
        ranks = parse_mesh(str(entry.mesh), nodes, experiment.cluster.workers_per_node)
    return _placed(entry.layout, ranks, backend)._replace(python=entry.python or "")


def under(section: PlacementConfig, backend: str) -> PlacementConfig:
    """A role's section where its model is held by this backend; as it is, where it has no choice."""
    return replace(section, backend=backend) if isinstance(section, ModelConfig) and backend else section


def _backend(experiment: ExperimentConfig, role: str) -> str:
    model = models_of(experiment).get(role)
    return "" if model is None else model.backend


def _placed(layout: str | None, ranks: Ranks, backend: str) -> Placed:
    return Placed(Layout(dp=len(ranks)) if layout is None else parse_layout(layout), ranks, backend)

"""Where every role is at home and every call is made, and how: one value, whoever decides it.

Settings, an allocation and the search each give a `Candidate`; `plan.plan_for` makes the plan of it, and nothing else
makes one. `settings_with` writes it back as settings, which give the same candidate again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.model import Between, TrainedModelConfig, models_of, shared_with
from hpcrl.placement.layouts import mesh_text
from hpcrl.placement.placing import Placed, entries_of, home_of, leaders, place_of
from hpcrl.recipes.algorithm import SCRIPT, algorithm_of


class Spot(NamedTuple):
    """Where a role is at home, or a call is made, and how."""

    place: Placed
    micro_batch_tokens: int = 0
    """Most tokens in one of its forward passes on a worker; 0 where there is no model of hpcrl's."""
    between: Between | None = None
    """What becomes of a copy's parameters between its calls, or of those of a role that is not trained: host, they
    wait in the host's memory. None: what is usual."""


@dataclass(frozen=True)
class Candidate:
    """Of a run on so many nodes."""

    homes: Mapping[str, Spot]
    """Of each role that is called."""
    calls: Mapping[str, Spot]
    """Of the calls that are made otherwise than their role's home says."""

    def at(self, call: str, role: str) -> Spot:
        """Where a call of a role is made."""
        return self.calls.get(call, self.homes[role])


def candidate_of(experiment: ExperimentConfig, nodes: int) -> Candidate:
    """What the settings of roles and `calls` say, on so many nodes. Raises ValueError where they name no layout or
    mesh that there is."""
    calls = algorithm_of(experiment).calls(experiment)
    roles = {call.name: call.role for call in calls}
    homes = {
        role: Spot(home_of(experiment, role, nodes), _tokens(experiment, role), _between(experiment, role))
        for role in roles.values()
    }
    found = {
        name: Spot(
            place_of(experiment, roles[name], entry, nodes),
            entry.micro_batch_tokens or homes[roles[name]].micro_batch_tokens,
            entry.between,
        )
        for name, (_, entry) in entries_of(experiment, calls).items()
    }
    return Candidate(homes, found)


def settings_with(experiment: Any, candidate: Candidate) -> Any:
    """The experiment whose settings give this candidate on its nodes. What gives it already stays as it is written, but
    layouts of models that nobody has written: those would be others on other nodes."""
    experiment = with_homes(experiment, candidate.homes)
    nodes, entries = experiment.cluster.most_nodes, {}
    calls = algorithm_of(experiment).calls(experiment)
    given = candidate_of(experiment, nodes)
    for call in calls:
        spot = candidate.at(call.name, call.role)
        if call.name in experiment.calls and given.at(call.name, call.role) == spot:
            entries[call.name] = experiment.calls[call.name]
            continue
        home, led = candidate.homes[call.role], leaders(call, calls)
        if spot != (candidate.at(led[0], call.role) if led else home):
            entries[call.name] = _entry(spot, home)
    return replace(experiment, calls=entries)


def with_homes(experiment: Any, homes: Mapping[str, Spot]) -> Any:
    """The same of homes alone: `calls` stays as it is written."""
    for role, spot in homes.items():
        if role != SCRIPT and not shared_with(experiment, role):
            experiment = _with_home(experiment, role, spot, experiment.cluster.most_nodes)
    return experiment


def _with_home(experiment: Any, role: str, spot: Spot, nodes: int) -> Any:
    section, said = getattr(experiment, role), dict[str, Any]()
    left_open = role in models_of(experiment) and section.layout is None and section.mesh is None
    if left_open or home_of(experiment, role, nodes) != spot.place:
        everywhere = spot.place.ranks == tuple(range(experiment.cluster.workers_per_node * nodes))
        said = {"layout": str(spot.place.layout), "mesh": None if everywhere else mesh_text(spot.place.ranks)}
    if spot.micro_batch_tokens != _tokens(experiment, role):
        said["micro_batch_tokens"] = spot.micro_batch_tokens
    if spot.between != _between(experiment, role):
        said["between"] = replace(section.between, parameters=spot.between or "keep")
    return replace(experiment, **{role: replace(section, **said)}) if said else experiment


def _entry(spot: Spot, home: Spot) -> dict[str, Any]:
    """That of `calls`. What is as at home is left out, but for the layout, without which it would be another."""
    layout, ranks, backend, python = spot.place
    said: dict[str, Any] = {"layout": str(layout)}
    if ranks != home.place.ranks:
        said["mesh"] = mesh_text(ranks)
    if backend != home.place.backend:
        said["backend"] = backend
    if python:
        said["python"] = python
    if spot.micro_batch_tokens != home.micro_batch_tokens:
        said["micro_batch_tokens"] = spot.micro_batch_tokens
    if spot.between is not None:
        said["between"] = spot.between
    return said


def _between(experiment: ExperimentConfig, role: str) -> Between | None:
    model = models_of(experiment).get(role)
    is_away = model is not None and not isinstance(model, TrainedModelConfig) and model.between.parameters == "host"
    return "host" if is_away else None


def _tokens(experiment: ExperimentConfig, role: str) -> int:
    model = models_of(experiment).get(shared_with(experiment, role) or role)
    return 0 if model is None else model.micro_batch_tokens

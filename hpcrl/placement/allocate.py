"""Where models are trained and calls are made, as `allocation` says: of the experiment, the models' shapes, the nodes.

`pipe_data` and `pipe_model` have a stage on each node and split data, or layers, over its workers. `heuristic` is that
of ReaL (Mei et al. 2024, arXiv:2406.14088) for nodes of any size: trained roles share the cluster by their parameters
(shares are rounded; ReaL rounds the first up, of sizes in whole billions), generation has all of it with at least two
stages and no tensor parallelism, inference has all of it in two data-parallel parts. What a model, a backend or a batch
does not allow is taken as near as it can be had.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.model import PlacementConfig, models_of, shared_with
from hpcrl.config.validate import collect
from hpcrl.data.batch import Batch
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import ConfigurationError
from hpcrl.families.config import DecoderConfig
from hpcrl.families.foreign import ForeignConfig
from hpcrl.families.reader import parameter_count
from hpcrl.placement.abilities import axes_of
from hpcrl.placement.candidate import Candidate, candidate_of, settings_with, with_homes
from hpcrl.placement.check import ALL_CHECKS
from hpcrl.placement.layouts import parse_layout
from hpcrl.placement.memory import head_model
from hpcrl.placement.meshes import Grid, layouts_on
from hpcrl.placement.placing import Placed
from hpcrl.recipes.algorithm import algorithm_of

MANUAL = "manual"
SEARCH = "search"
SMALL = 8e9
"""Parameters up to which a model that is trained on a part of one node is split over data as well as over layers."""


def settle(experiment: Any) -> Any:
    """The experiment as its allocation, which is no search, places it; `allocation` is then manual. Reads each model's
    config.json.

    Raises ConfigurationError with what is wrong with the result.
    """
    if experiment.allocation == MANUAL:
        return experiment
    settled = replace(settings_with(experiment, allocate(experiment, placed_models(experiment))), allocation=MANUAL)
    if problems := collect(settled, ALL_CHECKS, ()):
        raise ConfigurationError(problems)
    return settled


def placed_models(experiment: Any) -> dict[str, DecoderConfig]:
    """Role → its model under its head, of the roles that an allocation or a search places: those that are called and
    have a model of their own. Reads each model's config.json."""
    algorithm = algorithm_of(experiment)
    called = {call.role for call in algorithm.declared(experiment)}
    return {
        role: head_model(role, it, algorithm)
        for role, it in models_of(experiment).items()
        if role in called and not shared_with(experiment, role)
    }


def afresh(experiment: ExperimentConfig, overrides: Sequence[str]) -> list[str]:
    """The changes of a run whose allocation is among them: what places models now is no longer given."""
    if not any(text.startswith("allocation=") for text in overrides):
        return list(overrides)
    cleared = [f"{role}.{key}=null" for role in models_of(experiment) for key in ("layout", "mesh")]
    return [*cleared, "calls={}", "on_nodes={}", *overrides]


def allocate(experiment: Any, models: Mapping[str, DecoderConfig]) -> Candidate:
    """Homes for the roles that have none of their own, and where calls are made that `calls` does not place."""
    at, nodes = _Allocation.of(experiment, models), experiment.cluster.most_nodes
    sections = {role: getattr(experiment, role) for role in models}
    free = [role for role, section in sections.items() if section.layout is None and section.mesh is None]
    homes, manual = at.homes(), candidate_of(experiment, nodes).homes
    housed = {role: manual[role]._replace(place=manual[role].place.on(*homes[role][:2])) for role in free}
    given = candidate_of(with_homes(experiment, housed), nodes)
    elsewhere = {}
    for call, place in at.calls():
        home = given.homes[call.role]
        if (place.layout, place.ranks) != home.place[:2]:
            elsewhere[call.name] = home._replace(place=home.place.on(place.layout, place.ranks))
    return Candidate(given.homes, {**elsewhere, **given.calls})


@dataclass(frozen=True)
class _Allocation:
    """The parts of an experiment that an allocation goes by."""

    mode: str
    cluster: Grid
    models: Mapping[str, DecoderConfig]
    axes: Mapping[str, tuple[str, ...]]
    recipe: tuple[MFC, ...]
    pieces: int
    """Data-parallel parts that a batch can fill."""

    @staticmethod
    def of(experiment: ExperimentConfig, models: Mapping[str, DecoderConfig]) -> "_Allocation":
        algorithm, cluster = algorithm_of(experiment), experiment.cluster
        batch = algorithm.batch(experiment)
        grid = Grid(0, cluster.most_nodes, cluster.workers_per_node)
        return _Allocation(
            experiment.allocation,
            grid,
            models,
            {role: axes_for(role, getattr(experiment, role), model) for role, model in models.items()},
            tuple(call for call in algorithm.declared(experiment) if call.role in models),
            pieces_of(batch, grid.size),
        )

    def homes(self) -> dict[str, Placed]:
        """Where each model is trained and saved, or where it is used if it is not trained."""
        nodes, slots = self.cluster.nodes, self.cluster.slots
        if self.mode == "pipe_data":
            return {role: self._fit(role, self.cluster, 1, nodes) for role in self.models}
        if self.mode == "pipe_model":
            return {role: self._fit(role, self.cluster, slots, nodes) for role in self.models}
        if self.mode != "heuristic":
            return {role: Placed(parse_layout(self.mode), self.cluster.ranks) for role in self.models}
        trained = list(dict.fromkeys(call.role for call in self.recipe if call.kind == "train_step"))
        sizes = [float(parameter_count(self.models[role])) for role in trained]
        grids = self.cluster.divided(sizes) if trained else []
        homes = {role: self._trained(role, grid, size) for role, grid, size in zip(trained, grids, sizes, strict=True)}
        for call in self.recipe:
            if call.blends:
                homes[call.role] = homes[call.blends]  # a blend is made where both are
        for call in self.recipe:
            homes.setdefault(call.role, self._used(call, self.cluster))
        return homes

    def calls(self) -> list[tuple[MFC, Placed]]:
        """Where the calls of trained models are made that do not train them."""
        if self.mode != "heuristic":
            return []
        trained = {call.role for call in self.recipe if call.kind == "train_step"}
        others = [call for call in self.recipe if call.role in trained and call.dataset == "train" and not call.changes]
        beside = [call for call in others if call.kind == "inference"]
        grids = dict(zip((call.name for call in beside), self.cluster.divided([1.0] * len(beside)), strict=True))
        return [(call, self._used(call, grids.get(call.name, self.cluster))) for call in others]

    def _trained(self, role: str, grid: Grid, size: float) -> Placed:
        parts = 2 if size <= SMALL or grid.nodes > 1 else 1
        return self._fit(role, grid, grid.slots // parts, grid.nodes)

    def _used(self, call: MFC, grid: Grid) -> Placed:
        if call.kind == "generate":
            return self._fit(call.role, grid, 1, max(2, grid.nodes))
        return self._fit(call.role, grid, grid.slots // 2, grid.nodes)

    def _fit(self, role: str, grid: Grid, tp: int, pp: int) -> Placed:
        """The layout over all of a grid that is nearest to these degrees."""
        tp, found = max(1, tp), layouts_on(grid, self.models[role], self.axes[role])
        nearest = min(found, key=lambda it: (it.dp > self.pieces, *_beyond(it.tp, tp), *_beyond(it.pp, pp)))
        return Placed(nearest, grid.ranks)


def pieces_of(batch: Batch, workers: int) -> int:
    """Into how many parts a step can be split, with something in each."""
    return workers if batch.tokens is not None else batch.pieces


def axes_for(role: str, section: PlacementConfig, model: DecoderConfig) -> tuple[str, ...]:
    """Those over which its backend splits a role, or only data where the model is whole on each worker."""
    return ("dp",) if isinstance(model, ForeignConfig) else axes_of(role, section)


def _beyond(size: int, wanted: int) -> tuple[int, int]:
    """Less than was wanted is nearer than more."""
    return max(0, size - wanted), max(0, wanted - size)

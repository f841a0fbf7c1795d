"""Models that a layout cannot cut: heads and neurons over tensor-parallel ranks, blocks over stages."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.model import TrainedModelConfig, models_of
from hpcrl.errors import Problem
from hpcrl.families.config import DecoderConfig
from hpcrl.families.family import TPBlock
from hpcrl.families.foreign import ForeignConfig
from hpcrl.families.reader import parameters_of
from hpcrl.placement.abilities import axes_of, axes_problem, settings_of
from hpcrl.placement.judges import models_held
from hpcrl.placement.layouts import Layout, Ranks
from hpcrl.placement.placing import Placed, entries_of, home_of, place_of, under
from hpcrl.recipes.algorithm import algorithm_of

LARGEST_TP = 64
"""Up to so many tensor-parallel ranks are proposed."""


class Asked(NamedTuple):
    """A layout that a setting asks for."""

    key: str
    role: str
    place: Placed


def layouts_asked(experiment: ExperimentConfig) -> Iterator[Asked]:
    """Of all homes of models and all entries of `calls`. Raises ValueError where one is wrong by itself."""
    calls, nodes = algorithm_of(experiment).calls(experiment), experiment.cluster.most_nodes
    roles, models = {call.name: call.role for call in calls}, models_held(experiment)
    for role in models:
        if role in roles.values():
            yield Asked(f"{role}.layout", role, home_of(experiment, role, nodes))
    for name, (own, entry) in entries_of(experiment, calls).items():
        if own == name and roles[name] in models:
            yield Asked(f"calls.{name}.layout", roles[name], place_of(experiment, roles[name], entry, nodes))


def cut_problems(experiment: ExperimentConfig, models: Mapping[str, DecoderConfig]) -> Iterator[Problem]:
    """What of these roles' models cannot be cut as asked; layouts that are refused anyway are left out."""
    try:
        asked = list(layouts_asked(experiment))
    except ValueError:  # also msgspec's: said of the layout, or of `calls`
        return
    for key, role, (layout, ranks, backend, _) in asked:
        axes = axes_of(role, under(getattr(experiment, role), backend))
        if role not in models or layout.size != len(ranks) or axes_problem(key, str(layout), layout, axes):
            continue
        model, path = models[role], f"{role}.path"
        whole = f"transformers computes {path} whole on each worker"
        if isinstance(model, ForeignConfig) and (cut := axes_problem(key, layout.short, layout, ("dp",), whole)):
            yield replace(cut, keys=(*settings_of(key), path))
            continue
        if words := uncut(model, layout.tp):
            fitting = ", ".join(f"t{tp}" for tp in range(1, LARGEST_TP + 1) if not uncut(model, tp))
            yield Problem(
                (*settings_of(key), path),
                f"{key} = {layout.short} cuts each layer over tp = {layout.tp} workers, but {path} has {words}.",
                f"Set {key} to one with {fitting}.",
            )
        if layout.pp > model.blocks:
            yield Problem(
                (*settings_of(key), path),
                f"{key} = {layout.short} has pp = {layout.pp} stages, but {path} has {model.blocks} blocks, and each "
                "stage needs one.",
                f"Set {key} to one with at most p{model.blocks}.",
            )


def router_problems(experiment: ExperimentConfig, models: Mapping[str, DecoderConfig]) -> Iterator[Problem]:
    """Settings of experts and routers that a model does not have."""
    for role, config in models_of(experiment).items():
        if role not in models or models[role].experts is not None:
            continue
        if config.experts != "inner":
            yield Problem(
                (f"{role}.experts", f"{role}.path"),
                f"{role}.experts = {config.experts}, but {role}.path has no experts.",
                f"Leave {role}.experts out.",
            )
        if not isinstance(config, TrainedModelConfig):
            continue
        for name in ("router_aux_coef", "router_z_coef"):
            if value := getattr(config, name):
                yield Problem(
                    (f"{role}.{name}", f"{role}.path"),
                    f"{role}.{name} = {value:g}, but {role}.path has no experts, and so no router: it has to be 0.",
                )


def uncut(model: DecoderConfig, tp: int) -> str:
    """What of a model cannot be cut over so many workers, in words; empty if all can."""
    blocks = {block: parameter.name for parameter in parameters_of(model) for block in parameter.tp_blocks}
    return " and ".join(
        dict.fromkeys(_in_words(model, block, name) for block, name in blocks.items() if block.problem(tp))
    )


def _in_words(model: DecoderConfig, block: TPBlock, parameter: str) -> str:
    if block.spare == "shared":
        return f"{block.units} key and value heads, which are neither a multiple nor a divisor of it"
    known = {(model.heads, model.head_dim): "attention heads", (model.intermediate_size, 1): "neurons in an MLP"}
    if model.experts is not None and "experts" in parameter:
        known[model.experts.inner_size, 1] = "neurons in an expert"
        known[model.experts.count, 1] = "experts"
    return f"{block.units} {known.get((block.units, block.size), f'units in {parameter}')}"


def tensor_notices(experiment: ExperimentConfig) -> Iterator[str]:
    """Layers that are cut over workers of several nodes. The experiment is valid."""
    slots = experiment.cluster.workers_per_node
    for key, _, (layout, ranks, *_) in layouts_asked(experiment):
        if group := _crossing(layout, ranks, slots):
            nodes = sorted({rank // slots for rank in group})
            yield (
                f"{key} = {layout.short} cuts each layer over workers {', '.join(map(str, group))}, which are on nodes "
                f"{', '.join(map(str, nodes))}: every layer waits for the network. Have tp at most the workers of a "
                "node, and stages (pp) on different nodes."
            )


def _crossing(layout: Layout, ranks: Ranks, slots: int) -> Ranks:
    """The first tensor-parallel group that is on several nodes."""
    groups = layout.groups("tp", ranks) if layout.tp > 1 else []
    return next((group for group in groups if len({rank // slots for rank in group}) > 1), ())

"""Whether the workers' memory fits what their nodes have: what cannot fit is refused, what may not is said."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from hpcrl.backends.backend import BACKENDS
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.model import ModelConfig, models_of, shared_with
from hpcrl.config.validate import collect
from hpcrl.errors import ConfigurationError
from hpcrl.placement.abilities import backend_of
from hpcrl.placement.allocate import settle
from hpcrl.placement.check import ALL_CHECKS
from hpcrl.placement.data_sheets import SHEETS
from hpcrl.placement.layouts import Layout
from hpcrl.placement.memory import Models, estimate_models, of_worker
from hpcrl.placement.meshes import powers_of_two
from hpcrl.placement.peak_flops import known_name
from hpcrl.placement.placing import mesh_of
from hpcrl.placement.plan import Plan, ReplicaPlan, plan_for
from hpcrl.placement.sizes import GIB
from hpcrl.placement.worker_memory import STATE, Load, peaks, waiting_models
from hpcrl.plugins import names

E = TypeVar("E", bound=ExperimentConfig)

Fields = Mapping[str, Mapping[str, str]]
"""Role → setting of it → value."""

MANY_NODES = 64
"""Up to so many times as many nodes are tried before more nodes are no longer proposed."""


@dataclass(frozen=True)
class Capacity:
    """What the workers of a node share, or each of them has for itself; `bytes` is None where nobody here knows."""

    bytes: float | None
    of: Literal["node", "worker"]
    source: str
    """The beginning of the sentence: "this machine has"."""
    more: str = ""
    """A sentence that says how to get more, if one can."""
    host: "Callable[[], Capacity] | None" = field(default=None, compare=False)
    """Of workers that have memory to themselves: what says the memory of their node. It is asked where models wait
    there."""
    gpu: str = ""
    """What the driver calls the GPU that workers have; empty where nobody here knows."""


def on_its_device(experiment: E, capacity: Capacity) -> E:
    """With the device that `auto` comes to: workers that have memory to themselves are on GPUs. Times are reckoned by
    the data sheet of theirs, where there is one and the settings say nothing else."""
    search = experiment.search
    if search.profile is search.device is None and known_name(capacity.gpu, SHEETS) and capacity.of == "worker":
        experiment = replace(experiment, search=replace(search, device=capacity.gpu))
    if experiment.cluster.device != "auto":
        return experiment
    device: Literal["cpu", "cuda"] = "cuda" if capacity.of == "worker" else "cpu"
    return replace(experiment, cluster=replace(experiment.cluster, device=device))


def check_memory(experiment: ExperimentConfig, capacity: Capacity) -> Iterator[str]:
    """What is doubtful, in sentences.

    Raises:
        ConfigurationError: parameters, gradients and optimizer alone are more than there is, says what would fit; or
            what waits in the memory of a host is more than its node has.
    """
    experiment = on_its_device(experiment, capacity)
    plan = plan_for(experiment)
    models, device = estimate_models(plan, experiment), experiment.cluster.device
    if device == "cuda" and capacity.host is not None:
        yield from _check_host(plan, models, capacity.host)
    most, at_most = need(plan, peaks(plan, models, device), capacity)
    lasting, at_worst = need(plan, peaks(plan, models, device, lasting=True), capacity)
    if capacity.bytes is None:
        if most >= GIB:
            yield (
                f"a {capacity.of} will need about {most / GIB:.1f} GiB; {capacity.source}. `hpcrl plan` shows for what."
            )
    elif lasting > capacity.bytes:
        raise ConfigurationError(
            [_too_much(lasting, at_worst, capacity)], f"{_remedy(experiment, capacity)} {capacity.more}".strip()
        )
    elif most > capacity.bytes:
        yield (
            f"a {capacity.of} may need {most / GIB:.1f} GiB (worker {at_most.rank} in {at_most.call}), but "
            f"{capacity.source} {capacity.bytes / GIB:.1f} GiB. Of these, {(most - lasting) / GIB:.1f} GiB are for one "
            "call at a time: lower micro_batch_tokens of the roles, or generation.slots, should memory run out."
        )


def need(plan: Plan, loads: Sequence[Load], capacity: Capacity) -> tuple[float, Load]:
    """Bytes of the worker, or of the node, that needs the most, and its worker that needs the most of these."""
    units = [[load] for load in loads]
    if capacity.of == "node":
        units = [[loads[rank] for rank in plan.ranks_on(node)] for node in range(plan.nodes)]
    most = max(units, key=lambda unit: sum(load.bytes for load in unit))
    return sum(load.bytes for load in most), max(most, key=lambda load: load.bytes)


def _check_host(plan: Plan, models: Models, host: Callable[[], Capacity]) -> Iterator[str]:
    """What is doubtful of the memory in which models of workers on GPUs wait. Raises ConfigurationError."""
    waiting = [dict(waiting_models(plan, models, worker.rank)) for worker in plan.workers]
    size = [sum(waits.values()) for waits in waiting]
    node = max(range(plan.nodes), key=lambda node: sum(size[rank] for rank in plan.ranks_on(node)))
    if not (waits := sum(size[rank] for rank in plan.ranks_on(node))):
        return
    capacity, most = host(), max(plan.ranks_on(node), key=size.__getitem__)
    if capacity.bytes is None:
        if waits >= GIB:
            yield f"{waits / GIB:.1f} GiB of models will wait in the memory of a node; {capacity.source}."
        return
    if waits <= capacity.bytes:
        return
    of = ", ".join(f"{model} {bytes_ / GIB:.1f}" for model, bytes_ in waiting[most].items())
    found = {model for rank in plan.ranks_on(node) for model in waiting[rank]}
    there = [replica for replica in plan.replicas if replica.model in found]
    knobs = [knob for replica in there for knob in _knobs(plan, models, replica)]
    offloads = [f"{it.role}.offload" for it in there if of_worker(models, it, it.ranks[0]).offloaded]
    ways = [f"{' or '.join(offloads)} to none"] if offloads else []
    ways += [f"{' or '.join(knobs)} to keep (of a copy, also to drop)"] if knobs else []
    raise ConfigurationError(
        [
            f"what is kept in the host's memory needs {waits / GIB:.1f} GiB of a node (worker {most}: "
            f"{of}), but {capacity.source} {capacity.bytes / GIB:.1f} GiB."
        ],
        f"Set {', or '.join(ways)}, or raise cluster.nodes. {capacity.more}".strip(),
    )


def _knobs(plan: Plan, models: Models, replica: ReplicaPlan) -> Iterator[str]:
    """The settings that have a model wait on its host."""
    if not replica.is_home:
        yield next(f"calls.{call}.between" for call, at in plan.at.items() if at == replica.model)
        return
    memory = of_worker(models, replica, replica.ranks[0])
    yield from (f"{replica.role}.between.{kind}" for kind in STATE if getattr(memory.between, kind, "") == "host")


def _too_much(lasting: float, at: Load, capacity: Capacity) -> str:
    assert capacity.bytes is not None
    of = ", ".join(f"{model} {size / GIB:.1f}" for model, size in at.parts)
    need = f"{lasting / GIB:.1f} GiB (on worker {at.rank} in {at.call}: {of})"
    return (
        f"the parameters, gradients and optimizers of a {capacity.of} need {need}, "
        f"but {capacity.source} {capacity.bytes / GIB:.1f} GiB."
    )


def _remedy(experiment: ExperimentConfig, capacity: Capacity) -> str:
    """The smallest change of types, allocation, what holds models or nodes, or of several of these, with which the run
    fits and can be planned; or, where on so few nodes some call always needs too much, with which what lasts fits."""
    nearly, nodes = "", 0
    for what, changed in _changes(experiment):
        if nearly and changed.cluster.most_nodes > nodes:
            break
        if collect(changed, ALL_CHECKS, ()) or (most := _most_where_it_fits(changed, capacity)) is None:
            continue
        if most <= (capacity.bytes or 0.0):
            return f"It fits with {what}."
        if not nearly:
            nearly = f"They fit with {what}, but a call may still need {most / GIB:.1f} GiB"
            nodes = changed.cluster.most_nodes
    if nearly:
        return f"{nearly}: also lower micro_batch_tokens of the roles, or generation.slots."
    return (
        "Neither bf16, nor another backend, nor offload, nor more nodes make it fit: take smaller models, or nodes "
        "with more memory."
    )


def _most_where_it_fits(experiment: ExperimentConfig, capacity: Capacity) -> float | None:
    """Bytes that a call may need; None where what is kept does not fit, on the devices or beside them."""
    plan, device = plan_for(experiment), experiment.cluster.device
    models = estimate_models(plan, experiment)
    if need(plan, peaks(plan, models, device, lasting=True), capacity)[0] > (capacity.bytes or 0.0):
        return None
    try:
        if device == "cuda" and capacity.host is not None:
            list(_check_host(plan, models, capacity.host))
    except ConfigurationError:
        return None
    return need(plan, peaks(plan, models, device), capacity)[0]


def _changes(experiment: Any) -> Iterator[tuple[str, Any]]:
    models = models_of(experiment)
    own = {role: model for role, model in models.items() if not shared_with(experiment, role)}
    wide = {role: {"dtype": "bf16"} for role, model in models.items() if model.dtype != "bf16"}
    frozen = {role: fields for role, fields in wide.items() if not hasattr(models[role], "optimizer")}
    nodes, factor = experiment.cluster.most_nodes, 1
    while factor <= MANY_NODES:
        more = replace(experiment, cluster=replace(experiment.cluster, nodes=nodes * factor))
        said = [f"cluster.nodes = {nodes * factor}"] if factor > 1 else []
        types: Sequence[Fields] = ({}, frozen, wide) if frozen and frozen != wide else ({}, wide)
        yield from (_with(more, said, fields) for fields in types if said or fields)
        if factor == 1:
            yield from _allocated(experiment)
        for held in (*_layers_split(more, own), *_held_otherwise(own)):
            both = {role: {**held.get(role, {}), **wide.get(role, {})} for role in models}
            yield from (_with(more, said, fields) for fields in (held, both))
        factor *= 2


def _with(experiment: Any, said: Sequence[str], fields: Fields) -> tuple[str, Any]:
    """With these fields of roles, in words after what is said already."""
    settings = [f"{role}.{name} = {value}" for role, of_role in fields.items() for name, value in of_role.items()]
    roles = {role: replace(getattr(experiment, role), **of_role) for role, of_role in fields.items()}
    return " and ".join([*said, *settings]), replace(experiment, **roles)


def _layers_split(experiment: Any, models: Mapping[str, ModelConfig]) -> Iterator[Fields]:
    """Each layer over 2, 4, … workers of a node, where layouts are given: without any, allocations are tried."""
    nodes = experiment.cluster.most_nodes
    sizes = {role: len(mesh_of(experiment, role, nodes)) for role, model in models.items() if model.layout is not None}
    for tensor in powers_of_two(experiment.cluster.workers_per_node)[1:]:
        if sizes and not any(size % tensor for size in sizes.values()):
            yield {role: {"layout": Layout(size // tensor, tensor).short} for role, size in sizes.items()}


def _held_otherwise(models: Mapping[str, ModelConfig]) -> Iterator[Fields]:
    """What is kept up to date in the host's memory; parameters cut over workers, and gradients, too; both."""
    offloading = [role for role, model in models.items() if "optimizer" in backend_of(model.backend).offloads]
    yield {role: {"offload": "optimizer"} for role in offloading if hasattr(models[role], "optimizer")}
    cutting = {name: backend for name in names(BACKENDS) if (backend := backend_of(name)).shards}
    for name, backend in cutting.items():
        yield {role: {"backend": name} for role in models}
        if not backend.adds_up:
            each = {role: {"reduce": "micro_batch"} for role, it in models.items() if hasattr(it, "reduce")}
            yield {role: {"backend": name, **each.get(role, {})} for role in models}
    for name, backend in cutting.items():
        if "parameters" in backend.offloads:
            yield {role: {"backend": name, "offload": "parameters"} for role in models}


def _allocated(experiment: Any) -> Iterator[tuple[str, Any]]:
    """With models that are cut, as far as nobody says otherwise."""
    for mode in ("pipe_model", "heuristic"):
        with contextlib.suppress(ConfigurationError):
            yield f"allocation = {mode}", settle(replace(experiment, allocation=mode))

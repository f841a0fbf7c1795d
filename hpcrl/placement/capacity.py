"""Whether the workers' memory fits what their nodes have: what cannot fit is refused, what may not is said."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.model import models_of
from hpcrl.config.validate import collect
from hpcrl.errors import ConfigurationError
from hpcrl.placement.check import ALL_CHECKS
from hpcrl.placement.memory import GIB, Memory, estimate_roles, worker_memory_gib
from hpcrl.placement.plan import Plan, make_plan

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


def check_memory(experiment: ExperimentConfig, capacity: Capacity) -> Iterator[str]:
    """What is doubtful, in sentences.

    Raises:
        ConfigurationError: parameters, gradients and optimizer alone are more than there is; says what would fit.
    """
    plan = make_plan(experiment, experiment.cluster.nodes)
    roles = estimate_roles(plan, experiment)
    most, lasting = _need(plan, roles, capacity), _need(plan, _lasting(roles), capacity)
    if capacity.bytes is None:
        if most >= GIB:
            yield (
                f"a {capacity.of} will need about {most / GIB:.1f} GiB; {capacity.source}. `hpcrl plan` shows for what."
            )
    elif lasting > capacity.bytes:
        raise ConfigurationError(
            [_too_much(roles, lasting, capacity)], f"{_remedy(experiment, capacity)} {capacity.more}".strip()
        )
    elif most > capacity.bytes:
        yield (
            f"a {capacity.of} may need {most / GIB:.1f} GiB, but {capacity.source} {capacity.bytes / GIB:.1f} GiB. Of "
            f"these, {(most - lasting) / GIB:.1f} GiB are for one call at a time: lower micro_batch_tokens of the "
            "roles, or generation.slots, should memory run out."
        )


def _need(plan: Plan, roles: dict[str, Memory], capacity: Capacity) -> float:
    """Bytes of the worker, or of the node, that needs the most."""
    by_rank = worker_memory_gib(plan, roles)
    if capacity.of == "worker":
        return GIB * max(by_rank)
    return GIB * max(sum(by_rank[rank] for rank in plan.ranks_on(node)) for node in range(plan.nodes))


def _lasting(roles: dict[str, Memory]) -> dict[str, Memory]:
    return {role: replace(memory, kv_cache=0.0, activations=0.0) for role, memory in roles.items()}


def _too_much(roles: dict[str, Memory], lasting: float, capacity: Capacity) -> str:
    assert capacity.bytes is not None
    of = ", ".join(f"{role} {memory.lasting / GIB:.1f}" for role, memory in roles.items())
    need = f"{lasting / GIB:.1f} GiB (on a worker: {of})"
    return (
        f"the parameters, gradients and optimizers of a {capacity.of} need {need}, "
        f"but {capacity.source} {capacity.bytes / GIB:.1f} GiB."
    )


def _remedy(experiment: ExperimentConfig, capacity: Capacity) -> str:
    """The smallest change of types, nodes or both with which the run fits and can be planned."""
    for what, changed in _changes(experiment):
        plan = make_plan(changed, changed.cluster.nodes)
        roles = _lasting(estimate_roles(plan, changed))
        if _need(plan, roles, capacity) <= (capacity.bytes or 0.0) and not collect(changed, ALL_CHECKS, ()):
            return f"It fits with {what}."
    return "Neither bf16 nor more nodes make it fit: take smaller models, or nodes with more memory."


def _changes(experiment: Any) -> Iterator[tuple[str, Any]]:
    models = models_of(experiment)
    wide = {role: replace(model, dtype="bf16") for role, model in models.items() if model.dtype != "bf16"}
    frozen = {role: model for role, model in wide.items() if not hasattr(model, "optimizer")}
    nodes, factor = experiment.cluster.nodes, 1
    while factor <= MANY_NODES:
        more = replace(experiment, cluster=replace(experiment.cluster, nodes=nodes * factor))
        said = [f"cluster.nodes = {nodes * factor}"] if factor > 1 else []
        for part in ({}, frozen, wide) if frozen and frozen != wide else ({}, wide):
            types = [f"{role}.dtype = bf16" for role in part]
            if said or types:
                yield " and ".join([*said, *types]), replace(more, **part)
        factor *= 2
